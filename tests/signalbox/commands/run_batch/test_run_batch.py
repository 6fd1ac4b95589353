"""`signalbox run-batch` as a user runs it: over a running server, and with a model of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from tests.signalbox.stacks import run_here, serve, signalbox

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TEXT = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}


def write(path: Path, **bodies: dict[str, Any]) -> Path:
    """Writes chats and completions, by their ids."""
    lines = [
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/chat/completions" if "messages" in body else "/v1/completions",
            "body": body,
        }
        for custom_id, body in bodies.items()
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def answers(path: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["custom_id"]: line["response"] for line in lines}


@pytest.mark.system
def test_a_batch_over_a_server_goes_on_where_it_was_left(tmp_path: Path) -> None:
    output = tmp_path / "answers"
    batch = write(tmp_path / "batch", a=CHAT, b={**TEXT, "temperature": 9}, c=TEXT)
    with serve(tmp_path / "log", "--simulate") as stack:
        command = ("run-batch", str(batch), "-o", str(output), "--url", stack.http_url())
        done = run_here(*command)
        assert done.returncode == 1
        assert "1 of 3 requests failed; their lines say why" in done.stderr
        found = answers(output)
        assert {key: one["status_code"] for key, one in found.items()} == {
            "a": 200,
            "b": 400,
            "c": 200,
        }
        assert "temperature" in found["b"]["body"]["error"]["message"]
        chat = ChatCompletion.model_validate(found["a"]["body"])
        text = Completion.model_validate(found["c"]["body"])
        assert chat.id
        assert text.usage is not None
        assert text.usage.completion_tokens == 4
        assert all(one["request_id"] for one in found.values())

        write(batch, a=CHAT, b={**TEXT, "temperature": 1}, c=TEXT)
        done = run_here(*command)
        assert done.returncode == 0, done.stderr
        assert "2 requests of 3 answered before" in done.stderr
        assert answers(output)["b"]["status_code"] == 200
        assert {key: answers(output)[key] for key in "ac"} == {key: found[key] for key in "ac"}
        assert stack.stop() == 0
    assert run_here(*command).returncode == 0  # nothing is left to ask
    write(batch, a=CHAT, b={**TEXT, "temperature": 1}, c={**TEXT, "max_tokens": 5})
    assert "answer to 'c', and that request has changed" in run_here(*command).stderr


@pytest.mark.system
def test_a_batch_with_a_model_of_its_own(tmp_path: Path) -> None:
    batch, output = write(tmp_path / "batch", a=CHAT, b=TEXT), tmp_path / "answers"
    done = signalbox("run-batch", str(batch), "--simulate", "--output-file", str(output))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert {one["status_code"] for one in answers(output).values()} == {200}
    assert answers(output)["b"]["body"]["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["FILE", "--url", "http://127.0.0.1:9/v1"], "give -o FILE for the answers"),
        (["-o", "OUT", "--simulate"], "give one FILE of requests"),
        (["FILE", "-i", "FILE", "-o", "OUT", "--simulate"], "give one FILE of requests"),
        (["FILE", "-o", "OUT"], "give --url URL of a server, or --model MODEL"),
        (
            ["FILE", "-o", "OUT", "--url", "http://a/v1", "--dtype", "int16"],
            "--dtype has no effect",
        ),
        (["FILE", "-o", "OUT", "--url", "http://a/v1", "--model", "m"], "--model has no effect"),
        (["FILE", "-o", "OUT", "--simulate", "--concurrency", "0"], "--concurrency is 0"),
        (
            ["FILE", "-o", "OUT", "--simulate", "--request-timeout", "nan"],
            "--request-timeout is nan",
        ),
        (["FILE", "-o", "OUT", "--url", "nowhere"], "give one such as http://127.0.0.1:8000/v1"),
        (["FILE", "-o", "FILE", "--url", "http://a/v1"], "line 1 is not an answer of a batch"),
        (["-i", "none", "-o", "OUT", "--simulate"], "cannot read none: No such file"),
        (["FILE", "-o", "OUT", "--simulate", "--no-http"], "leave --no-http out"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "FILE", a=TEXT)
    before = (tmp_path / "FILE").read_bytes()
    done = run_here("run-batch", *arguments)
    assert done.returncode == 1
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "FILE").read_bytes() == before
