"""The benchmark of pipeline stages runs, and prints what it measures."""

import re
import sys
from pathlib import Path

import pytest

from benchmarks import pipeline_stages
from gpu_worker.ranks.stage import Stage
from tests.gpu_worker.tiny_models import make_llama

SIZES = ("1 stages, 3", "1 stages, 1", "2 stages, 3", "2 stages, 1")


def test_stages_are_measured_beside_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tests.kernels.native.programs")  # skips without a C++ compiler
    make_llama(tmp_path)
    for name in ("_take", "execute"):  # which the benchmark replaces
        monkeypatch.setattr(Stage, name, getattr(Stage, name))
    options = ["--seqs", "3", "1", "--tokens", "4", "--prompt", "40"]
    monkeypatch.setattr(sys, "argv", ["pipeline_stages", str(tmp_path), *options])
    pipeline_stages.main()
    lines = capsys.readouterr().out.splitlines()
    for line, sizes in zip(lines[:4], SIZES, strict=True):
        assert re.match(rf"{sizes} sequences: \d+ tokens/s", line)
    assert re.match(r"first token of 40: \d+ ms alone, \d+ ms in 2 stages, \d\.\d\d", lines[4])
    assert re.match(rf"a boundary of 32 tokens: {32 * 48 * 4} bytes, \d+ us", lines[6])
