"""The GPU benchmark's own mistakes show on a CPU: every part runs there, with every size shrunk."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as program
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import (
    Measure,
    PartResult,
    from_json,
    markdown,
    share,
    to_json,
    verdict,
)
from benchmarks.gpu.models import LLAMA_3_8B, QWEN3_0_6B, make_runner
from benchmarks.gpu.part_list import PARTS
from benchmarks.gpu.part_process import run_process
from benchmarks.gpu.steps import kv_bytes, prefill_flops, read_weights_bytes
from tests.waiting import wait_until_ended

EXPECTED = {
    "probes": ["strided block-major view", "offsets past 2^31 elements", "event order"],
    "roofline": ["copy bandwidth", "matrix rate"],
    "steps": ["decode of 1, context 48: read", "prefill of 128: rate"],
    "workload": ["4 requests: tokens", "4 requests: read"],
    "gap": ["idle between steps, 4 sequences"],
    "swap": ["swap out, scattered", "swap in, neighbours", "context 128: chosen over better"],
    "attention": [
        "attention, 2 decodes of context 64: K and V read",
        "attention, prefill of 64: fused in PyTorch",
        "attention, prefill of 64: ours, beside PyTorch's",
    ],
    "transformers": ["ours, same work"],
    "kernels": ["decode of 1: all kernels", "decode of 4: all kernels", "prefill of 128: step"],
    "sweep": ["2 decodes of context 64: chosen", "prefill of 64: best"],
    "stack": [
        "1 at a time: tokens",
        "4 at a time: first token, median",
        "8 chats at a time: tokens",
    ],
    "steps-eager": ["decode of 1, context 48: tokens, enforce_eager True"],
}


def make_bench(folder: Path, settings: Mapping[str, Any] | None = None) -> Bench:
    return Bench(device=torch.device("cpu"), tiny=True, folder=folder, settings=settings or {})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Measure]]:
    """Returns what a part has measured; each runs once."""

    @functools.cache
    def of(name: str) -> list[Measure]:
        part = PARTS[name]
        return part.measurement()(make_bench(tmp_path_factory.mktemp("part"), part.settings))

    return of


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if not part.needs_card])
def test_every_part_measures_what_it_is_for(
    name: str, measured: Callable[[str], list[Measure]]
) -> None:
    found = measured(name)
    names = [measure.name for measure in found]
    assert set(EXPECTED[name]) <= set(names)
    assert len(set(names)) == len(names)
    assert all(measure.value > 0 for measure in found)  # a probe that fails is 0


def test_what_a_share_is_of_is_measured_by_an_earlier_part(
    measured: Callable[[str], list[Measure]],
) -> None:
    earlier: list[Measure] = []
    for name in ("roofline", "steps", "swap", "steps-eager"):
        found = measured(name)
        assert all(share(one, [*earlier, *found]) for one in found if one.of is not None)
        earlier += found


def test_a_part_that_fails_is_in_the_table_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(program.PARTS, "unknown", PARTS["probes"])  # not to the part's process
    arguments = ["--device", "cpu", "--tiny", "--limit", "250", "--out", str(tmp_path)]
    assert program.main([*arguments, "--parts", "unknown", "probes"]) == 1
    content = json.loads((tmp_path / "gpu.json").read_text())
    roofline, failed, measured = content["parts"]  # the card's own rates are in every run
    assert roofline["name"] == "roofline"
    assert "invalid choice: 'unknown'" in failed["failure"]
    assert "usage:" in (tmp_path / "gpu-unknown.log").read_text()  # all that it has printed
    assert not measured["failure"]
    assert measured["measures"]
    assert (tmp_path / "gpu.md").read_text() in capsys.readouterr().out


def test_a_setting_reaches_the_workers_of_a_part_or_is_refused(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, {"max_model_len": 192})
    runner = make_runner(bench, LLAMA_3_8B, num_seqs=2, num_tokens=32)
    assert runner.model.max_model_len == 192
    with pytest.raises(ValueError, match="no setting of a worker is called max_length"):
        make_runner(make_bench(tmp_path, {"max_length": 1}), LLAMA_3_8B, num_seqs=2, num_tokens=32)


def test_a_part_imports_what_it_needs() -> None:
    script = (
        "import sys; from benchmarks.gpu.part_list import PARTS; import benchmarks.gpu.__main__; "
        "PARTS['roofline'].measurement(); "
        "tops = {'transformers', 'signalbox_router', 'signalbox_scheduler', 'signalbox'};"
        "print(*tops & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (found.stdout, found.returncode) == ("\n", 0), found.stderr


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {started}; wait"
    log = tmp_path / "log"
    for limit_s in (2, 20):  # a busy machine may not have started it within 2 s
        end = run_process(["bash", "-c", script], environment={}, limit_s=limit_s, log=log)
        assert end == f"not done within {limit_s} s"
        if started.exists() and (pid := started.read_text()):
            break
    wait_until_ended(int(pid))


def test_the_program_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("it has what it needs")
    assert program.main([]) == 2
    assert "finds no CUDA device" in capsys.readouterr().err


def test_a_result_survives_its_file_and_says_what_was_reached() -> None:
    roof = PartResult(name="roofline", measures=[Measure(name="roof", value=100.0, unit="GB/s")])
    steps = PartResult(
        name="steps",
        measures=[
            Measure(name="fast", value=90.0, unit="GB/s", of="roof", aim=0.85),
            Measure(name="slow", value=80.0, unit="GB/s", of="roof", aim=0.85),
            Measure(name="late", value=0.05, unit="", aim=0.03, is_least=False),
            Measure(name="alone", value=1.0, unit="µs", of="nothing", aim=1.15),
        ],
    )
    lost = PartResult(name="gap", measures=[], failure="CUDA error: out of memory")
    results = [from_json(to_json(one)) for one in (roof, steps, lost)]
    assert results == [roof, steps, lost]
    rows = markdown(results, {"device": "a card"}).splitlines()
    assert "| steps | fast | 90 GB/s | 0.900 of roof | ≥ 0.85 | yes |  |" in rows
    assert "| steps | slow | 80 GB/s | 0.800 of roof | ≥ 0.85 | no |  |" in rows
    assert "| steps | late | 0.05  |  | ≤ 0.03 | no |  |" in rows
    assert "| steps | alone | 1 µs | ? of nothing | ≥ 1.15 |  |  |" in rows
    assert "- gap: not measured: CUDA error: out of memory (0 s)" in rows


def test_the_aim_is_lower_where_a_card_copies_fast() -> None:
    def verdicts(rate: float, *values: float) -> list[str]:
        found = [Measure(name="copy", value=rate, unit="GB/s")]
        found += [
            Measure(name=f"{value}", value=value, unit="GB/s", of="copy", aim=0.85, aim_if_fast=0.8)
            for value in values
        ]
        return [verdict(one, found) for one in found[1:]]

    assert verdicts(3000.0, 2460.0, 2580.0) == ["no", "yes"]  # 0.82 and 0.86
    assert verdicts(4300.0, 3397.0, 3526.0) == ["no", "yes"]  # 0.79 and 0.82


def test_the_least_work_follows_from_what_is_known_of_the_models() -> None:
    assert read_weights_bytes(LLAMA_3_8B) == pytest.approx(2 * (8.03e9 - 0.525e9), rel=0.001)
    assert read_weights_bytes(QWEN3_0_6B) == pytest.approx(2 * 0.596e9, rel=0.001)
    assert kv_bytes(LLAMA_3_8B) == 128 * 1024
    assert prefill_flops(LLAMA_3_8B, 1) == pytest.approx(read_weights_bytes(LLAMA_3_8B), rel=1e-3)
