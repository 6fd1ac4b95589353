"""Tests of tests/gpu on a CPU, with graphs that record its operators: they, too, may be wrong."""

from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu import test_decode_steps as on_a_card
from tests.gpu_worker.device.recorded_graphs import GraphsOnCpu
from tests.gpu_worker.models.attention.device_attention import make_device_runner

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def runners_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_runner(path: Path, *, enforce_eager: bool = False, **_: Any) -> LocalRunner:
        return make_device_runner(
            path,
            GraphsOnCpu(),
            enforce_eager=enforce_eager,
            max_num_seqs=on_a_card.MAX_SEQS,
            max_graph_tokens=on_a_card.MAX_GRAPH_TOKENS,
        )

    monkeypatch.setattr(on_a_card, "make_runner", make_runner)


@pytest.mark.parametrize("params", [on_a_card.GREEDY, on_a_card.FILTERED, on_a_card.REPORTED])
def test_tokens_and_numbers_of_graphs(tiny: Path, params: Any) -> None:
    on_a_card.test_graphs_draw_what_eager_steps_and_pytorch_draw(tiny, params)


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_steps_of_all_kinds(
    tiny: Path, enforce_eager: bool, caplog: pytest.LogCaptureFixture
) -> None:
    on_a_card.test_steps_after_the_start_compile_nothing(tiny, enforce_eager, caplog)


def test_graphs_are_measured_and_recorded_again(tiny: Path) -> None:
    on_a_card.test_profiling_counts_graphs_and_leaves_none(tiny)
