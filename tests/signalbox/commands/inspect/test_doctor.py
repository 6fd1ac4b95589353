"""What `signalbox doctor` and `signalbox health` say."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NoReturn

import pytest

from signalbox.commands.inspect import doctor
from signalbox.settings.loading import in_words_of_flags
from signalbox.stack import machine_info
from signalbox_kernels.native import ISA_VARIABLE, NativeUnavailable
from tests.signalbox.stacks import run_here, serve

REQUIREMENTS = [
    "grpcio>=1.81.1",
    "pydantic-settings>=2.8",
    'torch>=2.11; extra == "worker"',
    'ruff>=0.16; extra == "dev"',
]
find_spec = importlib.util.find_spec


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretends that these are installed, with or without torch, and nothing else is."""

    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    def find(name: str) -> ModuleSpec | None:
        return None if name == "torch" and name not in versions else find_spec(name)

    monkeypatch.setattr(metadata, "requires", lambda _: REQUIREMENTS)
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", find)


def test_without_torch_native_programs_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, grpcio="1.82.0", pydantic_settings="2.8.0")
    report = doctor.examine()
    assert report.problems == []
    assert report.sections["will be used"]["device"] == "cpu"
    assert report.sections["worker"]["native CPU kernels"]
    assert "pytorch" not in report.sections
    assert report.sections["packages"]["torch"] is None
    assert any("signalbox-serving[worker]" in note for note in report.notes)


def test_without_kernels_and_pytorch_no_model_can_be_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> NoReturn:
        raise NativeUnavailable("no space left")

    install(monkeypatch, grpcio="1.82.0", pydantic_settings="2.8.0")
    monkeypatch.setattr("signalbox_worker.runner.native.capabilities.best_isa", fail)
    (problem,) = doctor.examine().problems
    assert "(none: no space left); pip install 'signalbox-serving[worker]'" in problem


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"grpcio": "1.81.0", "pydantic_settings": "2.8"}, "grpcio is 1.81.0, older than 1.81.1"),
        ({"grpcio": "1.100.0"}, "pydantic-settings is not installed"),
    ],
)
def test_what_is_missing_or_too_old_is_a_problem_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], expected: str
) -> None:
    install(monkeypatch, **versions)
    (problem,) = doctor.examine().problems
    assert problem.startswith(expected)
    assert "pip install" in problem


def test_another_package_of_the_same_name_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, grpcio="2.0", pydantic_settings="3.0")
    other = ModuleSpec("signalbox_router", None, is_package=True)
    other.submodule_search_locations = [str(tmp_path / "signalbox_router")]
    ours: Callable[[str], ModuleSpec | None] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: other if name == "signalbox_router" else ours(name),
    )
    (problem,) = doctor.examine().problems
    assert "package signalbox_router" in problem
    assert str(tmp_path) in problem


def test_a_taken_port_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        install(monkeypatch, grpcio="2.0", pydantic_settings="3.0")
        monkeypatch.setattr(doctor, "PORTS", {port: ("router", "--grpc-port")})
        report = doctor.examine()
    (shown,) = (text for name, text in report.sections["on this machine"].items() if "port" in name)
    assert f"(process {os.getpid()})" in str(shown)
    assert any("--grpc-port" in note for note in report.notes)


def test_a_port_of_our_own_server_is_no_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serve(tmp_path / "log", "--simulate") as stack:
        port = int(stack.address.rpartition(":")[2])
        monkeypatch.setattr(doctor, "PORTS", {port: ("router, gRPC", "--grpc-port")})
        report = doctor.examine()
    shown = report.sections["on this machine"][f"port {port} (router, gRPC)"]
    assert str(shown).startswith("taken by signalbox router (process ")
    assert not any(str(port) in note for note in report.notes)


def test_the_command_prints_a_table_or_json() -> None:
    table = run_here("doctor")
    assert table.returncode == 0, table.stderr
    assert "will be used" in table.stdout
    report = json.loads(run_here("doctor", "--json").stdout)
    assert report["problems"] == []
    assert report["sections"]["will be used"]["device"]
    assert (
        int(report["sections"]["machine"]["cores"].partition(",")[0]) == machine_info.usable_cores()
    )


def test_a_forced_instruction_set_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "portable")
    report = doctor.examine()
    shown = report.sections["worker"]["native CPU kernels"]
    assert shown is not None
    assert shown.startswith(("none:", "portable, with SIGNALBOX_ISA=portable"))
    if report.sections["will be used"]["device"] == "cpu":
        assert report.sections["will be used"]["dtype of 16-bit models"] == "float32"
    monkeypatch.setenv(ISA_VARIABLE, "mmx")
    report = doctor.examine()
    assert report.problems == [p for p in report.problems if p.startswith("SIGNALBOX_ISA is 'mmx'")]
    assert report.problems


def test_a_processor_is_read_from_procfs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: Fast 9000\nflags\t\t: fpu avx2 amx_bf16 avx512f\n")
    monkeypatch.setattr(machine_info, "_CPUINFO", cpuinfo)
    assert machine_info.cpu_model() == "Fast 9000"
    assert machine_info.cpu_features() == ["avx2", "avx512f", "amx_bf16"]


def test_a_probe_loads_little() -> None:
    probe = "from signalbox.cli import main; main(['health', '--address', '127.0.0.1:9'])"
    heavy = "{'numpy', 'opentelemetry', 'pydantic', 'rich', 'torch', 'yaml'}"
    code = f"import sys; {probe}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_health_is_the_exit_status(tmp_path: Path) -> None:
    with serve(tmp_path / "log", "--simulate") as stack:
        assert run_here("health", "--address", stack.address).returncode == 0
        name = "signalbox.inference.v1.InferenceService"
        done = run_here("health", "--address", stack.address, "--service", name)
        assert done.returncode == 0, done.stderr
        done = run_here("health", "--address", stack.address, "--service", "no.such.Service")
        assert (done.returncode, "NOT_FOUND" in done.stderr) == (1, True)
    done = run_here("health", "--address", stack.address, "--wait", "0.5")
    assert done.returncode == 1
    assert done.stderr == f"signalbox health: {stack.address} does not answer\n"
    for wait in ("nan", "-1"):  # waiting until NaN has no end
        done = run_here("health", "--address", stack.address, f"--wait={wait}")
        assert (done.returncode, "--wait is" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("lower swap_space or kv_cache_memory", "lower --swap-space or --kv-cache-memory"),
        ("block_size is 24; it must", "--block-size is 24; it must"),
        ("device is 'cuda', but PyTorch", "--device is 'cuda', but PyTorch"),
        ("max_num_batched_tokens is 1; at least max_num_seqs (2)",
         "--max-num-batched-tokens is 1; at least --max-num-seqs (2)"),
        ("cannot read my_block_size or --swap-space", "cannot read my_block_size or --swap-space"),
        ("no such device is here", "no such device is here"),
        ("no chat_template.jinja in a/kv_disk", "no chat_template.jinja in a/kv_disk"),
    ],
)  # fmt: skip
def test_messages_of_services_name_flags(message: str, expected: str) -> None:
    assert in_words_of_flags(message) == expected
