"""`signalbox run` as a user runs it: one command, answers alone on standard output."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from signalbox.commands.run import _served_name as served_name
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import RunSettings
from tests.signalbox.stacks import COMMAND, environment, serve
from tests.waiting import EVENT_S

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def run(
    *arguments: str, piped: str | None = None, router: str = "127.0.0.1:9"
) -> subprocess.CompletedProcess[str]:
    """Runs the command; a router is looked for where none is, unless one is given."""
    source = {"stdin": subprocess.DEVNULL} if piped is None else {"input": piped}
    return subprocess.run(
        [*COMMAND, "run", *arguments],
        capture_output=True,
        text=True,
        timeout=EVENT_S,
        env={**environment(), "SIGNALBOX_ROUTER": router},
        **source,
    )


def prompt_tokens(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["usage"]["prompt_tokens"])


def test_the_answer_alone_is_on_standard_output_and_the_stack_ends() -> None:
    done = run("--simulate", "Hi", "--max-tokens=4", "--ignore-eos", "there")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "4 tokens" in done.stderr
    assert "4 tokens" not in done.stdout


def test_a_prompt_is_taken_as_llama_cli_takes_it(tmp_path: Path) -> None:
    """With -p, and behind a model that a flag names."""
    flags = ("--simulate", "--json", "--max-tokens=2", "--ignore-eos")
    as_argument, as_flag = run(*flags, "Hi there"), run(*flags, "-p", "Hi there", "--temp", "0")
    assert prompt_tokens(as_argument) == prompt_tokens(as_flag)
    missing = run("-m", str(tmp_path / "no.gguf"), "Hi", "there")
    assert missing.stderr.startswith("signalbox run: model not found: ")
    assert run(*flags, "Hi", "-p", "there").returncode == 1


def test_a_server_that_serves_the_model_is_used_unless_flags_ask_for_another(
    tmp_path: Path,
) -> None:
    flags = ("--simulate", "--json", "--max-tokens=2", "--ignore-eos")
    with serve(tmp_path / "log", "--simulate") as stack:
        shared = run(*flags, "Hi there", router=stack.address)
        assert f"using the server at {stack.address}" in shared.stderr
        piped = run(*flags, "Hi", "there", piped="A text.\n", router=stack.address)
        whole = run(*flags, "A text.\n\nHi there", router=stack.address)
        assert prompt_tokens(shared) < prompt_tokens(piped) == prompt_tokens(whole)
        own = run(*flags, "Hi there", "--block-size=8", router=stack.address)
        assert prompt_tokens(own) == prompt_tokens(shared)
        assert "using the server" not in own.stderr
        for name, found in (("simulated", "simulated"), ("other", "")):
            settings = load(RunSettings, {"simulate": True, "served_model_name": (name,)})
            assert asyncio.run(served_name(stack.address, settings)) == found
        assert stack.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["./nowhere", "Hi"], "model not found: ./nowhere"),
        ([], "give a MODEL"),
        ([MODEL, "--api-keys=keys.yaml", "Hi"], "run takes no --api-keys"),
        ([MODEL, "Hi", "--no-such-flag"], "there is no flag --no-such-flag"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], expected: str) -> None:
    done = run(*arguments)
    assert done.returncode in (1, 2)
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.model
def test_a_model_answers_a_piped_question() -> None:
    flags = ("--device=cpu", "--kv-cache-memory=0.1", "--swap-space=0", "--temperature=0")
    done = run(MODEL, *flags, "--max-tokens=24", piped="What is the capital of South Korea?\n")
    assert done.returncode == 0, done.stderr
    assert "Seoul" in done.stdout
