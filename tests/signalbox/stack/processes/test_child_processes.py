"""Processes of a local stack: what they have of their parent, and what it learns of their end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from signalbox.stack.processes import child_processes
from signalbox.stack.processes.child_processes import start, watch
from signalbox_kernels.native import ISA_VARIABLE
from tests.signalbox.stacks import environment
from tests.waiting import EVENT_S

FORKING = """
import json, logging, os, signal, sys, threading
from pathlib import Path
from types import SimpleNamespace
from signalbox_rpc.lifetime.stop_signals import stopping_later, take_stop_signals
from signalbox.stack.processes.child_processes import announce, may_fork, process_name, start

def report():
    take_stop_signals()
    arguments = sys.argv[1:]
    def words(name):
        return Path("/proc/self", name).read_text().replace(chr(0), " ").split()
    files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists()]
    Path(arguments[0]).write_text(json.dumps({
        "pid": os.getpid(),
        "session": os.getsid(0),
        "name": process_name("none"),
        "shown": [words("comm"), words("cmdline")],
        "environment": dict(os.environ),
        "handlers": len(logging.getLogger().handlers),
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "files": files,
    }))
    announce("serving", "model")
    if arguments[1] == "killed":
        os.kill(os.getpid(), signal.SIGTERM)
    return 3

assert may_fork()
sys.modules["signalbox.__main__"] = SimpleNamespace(main=report)
logging.basicConfig()
opened = open(sys.argv[1] + ".opened", "w")
with stopping_later():
    started = [
        start(f"worker {n}", [f"{sys.argv[1]}.{n}", ending], {"GIVEN": "1"}, fork=True)
        for n, ending in enumerate(("exits", "killed"))
    ]
print(json.dumps([[one.pid, os.read(one.news, 99).decode(), one.wait()] for one in started]))
threading.Thread(target=threading.Event().wait, daemon=True).start()
assert not may_fork()
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two forked processes report of themselves, and their parent of their end."""
    report = tmp_path_factory.mktemp("forked") / "report"
    variables = {"SIGNALBOX_MAX_NUM_SEQS": "7", ISA_VARIABLE: "portable"}
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(report)],
        capture_output=True,
        text=True,
        timeout=EVENT_S,
        env=environment() | variables,
    )
    assert done.returncode == 0, done.stderr
    return [
        json.loads(report.with_suffix(f".{number}").read_text())
        | {"seen": {"pid": pid, "news": news, "status": status}}
        for number, (pid, news, status) in enumerate(json.loads(done.stdout))
    ]


def test_a_forked_process_has_its_own_name_session_and_part_of_the_environment(
    forked: list[dict[str, Any]],
) -> None:
    for number, one in enumerate(forked):
        assert one["pid"] == one["session"] == one["seen"]["pid"]
        assert one["name"] == f"worker {number}"
        assert one["shown"] == [["worker", str(number)], ["signalbox", "worker", str(number)]]
        assert one["environment"]["GIVEN"] == "1"
        assert one["environment"][ISA_VARIABLE] == "portable"
        assert "SIGNALBOX_MAX_NUM_SEQS" not in one["environment"]


def test_a_forked_process_has_no_files_handlers_or_signal_mask_of_its_parent(
    forked: list[dict[str, Any]],
) -> None:
    for one in forked:
        assert one["handlers"] == one["blocked"] == 0
        assert one["files"].count(os.devnull) == 1
        assert not [file for file in one["files"] if file.endswith(".opened")]
        assert sum(file.startswith("pipe:") for file in one["files"]) == 3  # two outputs, and news


def test_the_parent_learns_what_a_forked_process_announces_and_how_it_ends(
    forked: list[dict[str, Any]],
) -> None:
    assert [one["seen"]["news"] for one in forked] == ["serving model\n"] * 2
    assert [one["seen"]["status"] for one in forked] == [3, -signal.SIGTERM]


def test_a_process_without_proc_starts_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(child_processes, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert not child_processes.may_fork()


IMPORTING = """
from pathlib import Path

def count(name):
    return len([*Path("/proc/self", name).iterdir()])

before = count("fd")
import signalbox.stack.local_stack, signalbox.stack.shared_imports
print(count("task"), count("fd") - before)
"""


def test_what_is_imported_before_a_fork_starts_no_thread_and_keeps_no_file() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING],
        capture_output=True,
        text=True,
        timeout=EVENT_S,
        env=environment() | {"OPENBLAS_NUM_THREADS": "1"},  # its threads end before a fork
    )
    assert done.stdout.split() == ["1", "0"], done.stderr


async def test_a_signal_does_not_take_the_status_of_a_process_that_has_ended() -> None:
    child = await watch(start("worker", ["--no-such-flag"]))
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 (so that the loop does not see it end)
    child.send(signal.SIGTERM)
    assert await child.wait() == 2
    assert child.ending == "exited with status 2"


async def test_several_tasks_may_wait_for_one_end() -> None:
    child = await watch(start("worker", ["--no-such-flag"]))
    cut_off = asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    cut_off.cancel()
    assert {*await asyncio.gather(child.wait(), child.wait())} == {2}
    assert not child.is_alive
