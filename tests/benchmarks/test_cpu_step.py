"""The benchmark of one step runs, and says where its time went."""

import sys
from pathlib import Path

import pytest

from benchmarks import cpu_step
from tests.gpu_worker.tiny_models import make_model


def test_a_step_is_measured_as_a_whole_and_by_kind_of_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tests.kernels.native.programs")  # skips without a C++ compiler
    make_model(tmp_path, head_dim=16)
    options = ["--forms", "torch", "native", "--cases", "decode 8", "--rounds", "1"]
    options += ["--kv-cache-dtypes", "float32", "int8", "--dtype", "float32", "--threads", "1"]
    arguments = ["cpu_step", str(tmp_path), *options]
    monkeypatch.setattr(sys, "argv", arguments)
    cpu_step.main()
    _, times, *ops = capsys.readouterr().out.splitlines()
    assert times.startswith("decode 8")
    for line, kv_dtype in zip(ops, ("float32", "int8"), strict=True):
        assert line.startswith(f"    native {kv_dtype}: ")
        assert all(f"{kind} " in line for kind in ("linear", "attend", "head"))
