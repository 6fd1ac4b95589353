"""`signalbox top`, `explain`, `dump` and `replay` as a user runs them, on a stack of processes."""

import json
from pathlib import Path

import httpx2
import pytest

from signalbox.cli import main, make_parser
from signalbox.client.service_client import CallRefused
from signalbox.commands.inspect import dump, explain, replay
from signalbox_scheduler.service.replay.replay_codec import NotARecording
from tests.signalbox.stacks import Stack, run_here, serve
from tests.waiting import EVENT_S

WHOLE = {"until": None, "dump": None, "token_ids": False, "check": False} | {
    "console": False,
    "speed": None,
    "port": None,
}


def test_a_running_stack_is_looked_into_and_its_recording_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "decisions"
    with serve(tmp_path / "log", "--simulate", "--recording-path", str(recording)) as stack:
        asked = run_here(
            *("generate", "hello", "--json", "--ignore-eos", "--max-tokens", "5"),
            *("--router", stack.address),
        )
        request_id = json.loads(asked.stdout)["request_id"]
        host, _, port = stack.address.partition(":")
        at = ("--scheduler", f"{host}:{int(port) + 1}")  # the port after the router's

        explained = run_here("explain", request_id, *at)
        assert explained.returncode == 0, explained.stderr
        assert "output 5 tokens, preempted never" in explained.stdout
        assert "first in the queue" in explained.stdout
        short = run_here("explain", f"{request_id[:12]}…", *at)  # as `top` cuts it
        assert short.stdout == explained.stdout
        explain.run({"address": at[1], "request_id": request_id, "json": True})
        as_json = json.loads(capsys.readouterr().out)
        assert as_json["events"][-1]["detail"] == "LENGTH"
        assert as_json["num_output_tokens"] == 5

        refused = run_here("profile", "--seconds", "0.1", *at)
        assert refused.returncode == 1
        assert "a simulated worker computes nothing" in refused.stderr

        check_the_prompts_of_one_answer(stack, at)
        load = json.loads(run_here("top", "--once", "--json", "--interval", "0.1", *at).stdout)
        assert load["num_ended"] == {"LENGTH": 3}
        assert load["workers"][0]["num_gpu_blocks"] == 4096

        cleared = run_here("cache", "clear", *at)
        assert cleared.returncode == 0, cleared.stderr
        assert cleared.stdout.endswith(": cleared\n")

        dump.run({"address": at[1], "file": str(tmp_path / "state"), "token_ids": False})
        state = json.loads((tmp_path / "state").read_text())
        assert state["workers"][0]["gpu"]["num_free"] == 4096
        assert state["requests"] == []

        at_router = run_here("top", "--once", "--scheduler", stack.address)
        assert "no scheduler of this version; under serve its port is the router's + 1" in (
            at_router.stderr
        )
        with pytest.raises(CallRefused, match="no request 'nobody'"):
            explain.run({"address": at[1], "request_id": "nobody", "json": True})

    replayed = run_here("replay", str(recording), "--check")
    assert replayed.returncode == 0, replayed.stderr
    assert "steps reproduced" in replayed.stdout
    replay.run({**WHOLE, "file": str(recording), "until": 2})
    until = json.loads(capsys.readouterr().out)
    assert until["requests"][0]["explanation"]["request_id"] == request_id


def check_the_prompts_of_one_answer(stack: Stack, at: tuple[str, str]) -> None:
    body = {"prompt": ["a", "b b"], "max_tokens": 3, "ignore_eos": True}
    answer_id = httpx2.post(f"{stack.http_url()}/completions", json=body, timeout=EVENT_S).json()[
        "id"
    ]
    shown = run_here("explain", answer_id, *at)
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:3]] == ["-0", "-1"]
    assert shown.stdout.count("output 3 tokens") == 1  # the slowest in full
    parts = json.loads(run_here("explain", answer_id, "--json", *at).stdout)["prompts"]
    assert [part["request_id"] for part in parts] == [f"{answer_id}-{i}" for i in range(2)]


@pytest.mark.parametrize("flag", ["--scheduler", "--address"])
@pytest.mark.parametrize("command", ["top", "explain id", "dump", "profile"])
def test_commands_name_their_scheduler_as_routers_and_workers_do(command: str, flag: str) -> None:
    options = vars(make_parser().parse_args([*command.split(), flag, "a.example:1"]))
    assert options["address"] == "a.example:1"


def test_a_scheduler_that_does_not_answer_is_one_line_and_a_status() -> None:
    done = run_here("top", "--once", "--scheduler", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "signalbox top: no scheduler answers at 127.0.0.1:1; check that it runs, and --scheduler;"
        " under serve its port is the router's + 1, and `signalbox ps` shows it"
    ]


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(NotARecording, match="is not a recording"):
        replay.run({**WHOLE, "file": str(tmp_path / "text")})


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "inf", "nan"])
def test_a_profile_of_no_possible_length_is_refused_by_its_flag(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["profile", "--worker", "127.0.0.1:9", f"--seconds={seconds}"])
    complaint = f"--seconds is {float(seconds):g}; allowed: more than 0, at most 60"
    assert (status, capsys.readouterr().err) == (1, f"signalbox profile: {complaint}\n")
