"""The local stack as a user sees it: real processes, no model."""

import json
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest

from signalbox_kernels.native import ISA_VARIABLE
from signalbox_rpc.limits.open_files import WANTED_FILES
from tests.gpu_worker.tiny_models import make_llama
from tests.ports import free_port
from tests.signalbox.stacks import COMMAND, Stack, environment, run_here, serve, signalbox
from tests.waiting import EVENT_S, wait_until

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack for tests that only ask it something."""
    log = tmp_path_factory.mktemp("shared") / "log"
    flags = ("--simulate", "--simulated-step-ms=5", "--workers=2", "--no-http")
    with serve(log, *flags) as stack:
        yield stack
        assert stack.stop() == 0


def test_a_prompt_streams_through_three_processes_and_none_is_left_after_ctrl_c(log: Path) -> None:
    with serve(log, "--simulate") as stack:
        assert set(stack.children()) == {"router", "scheduler", "worker"}
        done = signalbox(
            "generate", "hello", "--max-tokens=5", "--ignore-eos", "--router", stack.address
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
        assert "5 tokens, first after" in done.stderr
        children = list(stack.children().values())
        assert stack.stop(signal.SIGINT) == 0
        assert not [child for child in children if child.is_running()]
    assert "GOAWAY" not in log.read_text()  # of gRPC's own log, about connections that end


def test_a_second_stack_needs_no_port_of_its_own_for_grpc(
    log: Path, tmp_path: Path, shared: Stack
) -> None:
    """The last line has the address of each; a --grpc-port that is taken is refused."""
    with ExitStack() as started:
        first = started.enter_context(serve(log, "--simulate", chooses_port=True))
        second = started.enter_context(serve(tmp_path / "second", "--simulate", chooses_port=True))
        assert first.address != second.address
        for stack in (first, second):
            assert run_here("models", "--router", stack.address).returncode == 0
    port = shared.address.rpartition(":")[2]
    refused = run_here("serve", "--simulate", "--no-http", "--grpc-port", port)
    assert refused.returncode == 1
    assert "in use; choose another --grpc-port" in refused.stderr


def test_a_service_may_open_as_many_files_as_the_system_lets_it() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [*COMMAND, "scheduler", f"--port={free_port()}"]
    lower = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (256, hard))
    with subprocess.Popen(command, env=environment(), preexec_fn=lower) as started:
        try:
            process, wanted = psutil.Process(started.pid), min(hard, WANTED_FILES)
            wait_until(lambda: process.rlimit(psutil.RLIMIT_NOFILE) == (wanted, hard))
        finally:
            started.kill()


def test_http_can_be_turned_off(shared: Stack) -> None:
    assert "http://" not in shared.log.read_text()


def test_json_has_outputs_usage_and_times(shared: Stack) -> None:
    arguments = ("--max-tokens", "6", "-n", "2", "--seed", "1", "--router", shared.address)
    done = run_here("chat", "hello", "--ignore-eos", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [output["index"] for output in answer["outputs"]] == [0, 1]
    assert {output["finish_reason"] for output in answer["outputs"]} == {"length"}
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["time_to_first_token_s"] > 0


def test_a_killed_parent_takes_its_children_along(log: Path) -> None:
    with serve(log, "--simulate") as stack:
        children = list(stack.children().values())
        stack.process.kill()
        stack.process.wait()
        _, alive = psutil.wait_procs(children, timeout=EVENT_S)
        assert not alive


def eventually_in(log: Path, text: str) -> None:
    wait_until(lambda: text in log.read_text(), told=log.read_text)


@pytest.mark.parametrize("service", ["router", "scheduler"])
def test_a_service_that_dies_ends_the_stack_in_one_line(log: Path, service: str) -> None:
    with serve(log, "--simulate") as stack:
        stack.children()[service].kill()
        assert stack.process.wait(timeout=EVENT_S) == 1
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("signalbox serve")]
    assert f"{service}" in line
    assert line.endswith("was killed by SIGKILL, as the system does where memory is short")
    assert "Traceback" not in log.read_text()


def test_a_worker_that_dies_leaves_the_others_serving(log: Path) -> None:
    with serve(log, "--simulate", "--workers", "2") as stack:
        # A stack serves when its first worker does.
        wait_until(lambda: log.read_text().count("worker joined") == 2, told=log.read_text)
        stack.children()["worker"].kill()
        done = run_here("generate", "hello", "--max-tokens", "5", "--router", stack.address)
        assert done.returncode == 0, done.stderr
        # Ended while the stack serves, not by its end.
        eventually_in(log, "where memory is short; workers left: 1; it is started again after 1 s")
        wait_until(lambda: log.read_text().count("worker joined") == 3, told=log.read_text)
        assert stack.stop() == 0


def test_the_only_worker_is_started_again_and_takes_over_what_waits(log: Path) -> None:
    with serve(log, "--simulate", "--simulated-step-ms=20") as stack:
        asked = [*COMMAND, "generate", "hello", "--max-tokens=100", "--ignore-eos"]
        with subprocess.Popen(
            [*asked, "--router", stack.address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment(),
        ) as asking:
            assert asking.stdout is not None
            assert asking.stdout.read(1)
            stack.children()["worker"].kill()
            assert asking.wait(timeout=EVENT_S) == 0
        # The answer may have been whole before the worker was killed.
        wait_until(lambda: log.read_text().count("worker joined") == 2, told=log.read_text)
        assert stack.stop() == 0


INTERRUPTED = """
import os, signal, sys
from signalbox import __main__ as command

class Interrupting:
    def find_spec(self, name, *_):
        if name == imported:
            os.kill(os.getpid(), signal.SIGINT)

imported = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupting())
sys.exit(command.main())
"""


@pytest.mark.parametrize(
    ("imported", "arguments"),
    [
        ("signalbox.cli", ["generate", "hello"]),
        ("signalbox.settings.serve_settings", ["serve", "--simulate"]),
        ("signalbox.stack.local_stack", ["serve", "--simulate"]),
        ("signalbox.bench.command", ["bench"]),
    ],
)
def test_ctrl_c_during_an_import_is_status_130_and_not_a_word(
    imported: str, arguments: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, imported, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=EVENT_S,
        env=environment(),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_unknown_instruction_set_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "sse")
    done = signalbox("serve", "--simulate", "--grpc-port", "0", "--no-http")
    assert (done.returncode, done.stdout) == (1, "")
    assert "SIGNALBOX_ISA is 'sse'; it is one of portable, " in done.stderr
    assert done.stderr.count("\n") == 1  # no process was started


def test_a_second_signal_ends_the_stack_at_once_with_status_1(log: Path) -> None:
    with serve(log, "--simulate", "--simulated-step-ms=200", "--drain-timeout=600") as stack:
        asked = [*COMMAND, "generate", "hello", "--max-tokens", "900", "--router", stack.address]
        with subprocess.Popen(
            asked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment()
        ) as asking:
            assert asking.stdout is not None
            assert asking.stdout.read(1)
            stack.process.send_signal(signal.SIGTERM)
            eventually_in(log, "draining")
            stack.process.send_signal(signal.SIGTERM)
            assert (
                stack.process.wait(timeout=EVENT_S) == 1
            )  # before the request ends, and the drain
            assert asking.wait(timeout=EVENT_S) != 0
    assert "second signal" in log.read_text().splitlines()[-1]


@pytest.mark.model
def test_the_demo_answers_with_seoul_and_ends() -> None:
    done = signalbox("demo", MODEL, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "Seoul" in done.stdout
    assert "loading" in done.stderr
    assert "tokens/s" in done.stderr
    assert "All processes have ended" in done.stderr


def assert_one_line_error(done: subprocess.CompletedProcess[str], *expected: str) -> None:
    lines = [line for line in done.stderr.splitlines() if line.startswith("signalbox")]
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert any(all(part in line for part in expected) for line in lines), done.stderr


@pytest.mark.parametrize("command", ["serve", "worker", "router", "scheduler"])
def test_a_port_in_use_is_one_line(command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        kind = ["--simulate"] if command in ("serve", "worker") else []
        flag = "--grpc-port" if command in ("serve", "router") else "--port"
        done = signalbox(command, *kind, flag, port)
    assert_one_line_error(done, f"choose another {flag}")
    assert_one_line_error(done, f"127.0.0.1:{port}", "in use")


def test_a_start_that_fails_when_grpc_listens_leaves_one_line() -> None:
    """gRPC that is not stopped writes more while the interpreter ends."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments in (
            ("router", "--grpc-port", "0", "--port", port),
            ("router", "--grpc-port", port, "--http-port", "0"),
            ("worker", "--simulate", "--metrics-port", port),
        ):
            done = signalbox(*arguments, "--log-level=error")
            assert_one_line_error(done, f"127.0.0.1:{port}", "in use")
            assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_model_that_a_worker_has_no_memory_for_ends_the_stack(tmp_path: Path) -> None:
    make_llama(tmp_path)
    flags = ("--grpc-port", "0", "--no-http", "--device", "cpu", "--kv-cache-memory", "1e-7")
    done = signalbox("serve", str(tmp_path), *flags)
    assert_one_line_error(done, "signalbox worker", "too little memory for one KV block")
    assert_one_line_error(done, "signalbox serve", "worker 0 exited with status 1; its last lines")


@pytest.mark.parametrize(  # one function checks the model of each
    ("command", "model", "expected"),
    [
        ("serve", "./nowhere", "model not found: ./nowhere"),
        ("demo", "pyproject.toml", "pyproject.toml is no readable GGUF file"),
        ("worker", ".", "has no config.json"),
    ],
)
def test_a_model_that_is_none_is_refused_before_anything_starts(
    command: str, model: str, expected: str
) -> None:
    done = signalbox(command, model)
    assert_one_line_error(done, f"signalbox {command}: ", expected)
    assert len(done.stderr.splitlines()) == 1 + (command == "demo"), done.stderr


def test_a_metrics_port_that_is_taken_is_one_line_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = signalbox(
            "serve", "--simulate", "--grpc-port=0", "--no-http", f"--metrics-port={port - 1}"
        )
    assert_one_line_error(done, "signalbox serve", f"127.0.0.1:{port}", "in use")
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.model
def test_too_little_memory_for_one_block_is_one_line() -> None:
    done = signalbox("worker", MODEL, "--device=cpu", "--kv-cache-memory=0.000001")
    assert_one_line_error(done, "too little memory for one KV block", "--kv-cache-memory")


def test_a_worker_with_another_model_is_refused_in_one_line(shared: Stack) -> None:
    found = re.search(r"listening on (\S+);", shared.log.read_text())
    assert found is not None
    flags = ("--served-model-name", "other", "--scheduler", found[1])
    done = signalbox("worker", "--simulate", *flags)
    assert_one_line_error(done, "refuses this worker", "other")
    done = run_here("generate", "hello", "--max-tokens=3", "--router", shared.address)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("service", ["worker", "router"])
def test_a_service_before_its_scheduler_waits_visibly(service: str) -> None:
    kind = ["--simulate", "--port=0"] if service == "worker" else ["--grpc-port=0", "--no-http"]
    process = subprocess.Popen(
        [*COMMAND, service, *kind, "--scheduler=127.0.0.1:9"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr
    try:
        assert any("waiting for the scheduler at 127.0.0.1:9" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=EVENT_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve"], "give a MODEL"),
        (["serve", "--simulate", "--port", "x"], "--port is 'x'"),
        (["serve", "--simulate", "--no-such-flag"], "--no-such-flag"),
        (["router", "--trace-exporter", "jaeger"], "unknown trace exporter"),
        (["generate", "hello", "--router", "127.0.0.1:9"], "nothing answers at 127.0.0.1:9"),
        (["chat", "hello", "--router", "127.0.0.1:9"], "`signalbox serve MODEL`, or serve and"),
        (["chat", "hello", "--router", "127.0.0.1:9"], "`signalbox run MODEL`"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], expected: str) -> None:
    done = run_here(*arguments)
    assert_one_line_error(done, expected)
    assert len(done.stderr.splitlines()) == 1


def test_a_refused_request_is_one_line(shared: Stack) -> None:
    done = run_here("generate", "hello", "--temperature", "9", "--router", shared.address)
    assert_one_line_error(done, "INVALID_ARGUMENT", "temperature", "9")


def test_top_says_how_many_workers_serve_keeps(shared: Stack) -> None:
    found = re.search(r"listening on (\S+);", shared.log.read_text())
    assert found is not None
    shown = "signalbox serve keeps 2 workers running on this machine\n"
    top = partial(run_here, "top", "--once", "--interval=0.1", "--scheduler", found[1])
    wait_until(lambda: shown in top().stdout, told=shared.log.read_text)


def test_a_reader_that_leaves_is_no_error(shared: Stack) -> None:
    arguments = ["generate", "hello", "--ignore-eos", "--max-tokens=4000"]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--router", shared.address],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout and process.stderr
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=EVENT_S) != 0
    assert process.stderr.read() == b""


def test_help_and_version_need_no_service() -> None:
    assert "signalbox serve" in signalbox("--help").stdout
    assert run_here("--version").stdout.strip()
    services = ("serve", "router", "scheduler", "worker")
    for command in (*services, "generate", "chat", "health", "doctor"):
        assert run_here(command, "--help").returncode == 0


@pytest.mark.parametrize("command", [["serve", "--simulate"], ["scheduler"], ["router"]])
def test_a_port_in_the_clear_for_others_is_refused_with_its_remedy(command: list[str]) -> None:
    done = signalbox(*command, "--host", "0.0.0.0")
    assert_one_line_error(done, "cannot listen on 0.0.0.0", "--insecure")
