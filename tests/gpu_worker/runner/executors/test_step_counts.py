"""What a step on a CUDA device asks of it: launches, copies, memory; and that it never waits.

The shape is that of Llama-3-8B with 256 sequences; a "meta" device computes nothing.
"""

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.host_time.steps import CASES, make_runner, steps_of
from signalbox_kernels import triton
from tests.gpu_worker.device.step_counts import CountedGraphs, StepCounts, counted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not triton.is_installed(), reason="Triton is not installed"),
]

LAYERS = 32
IN_A_LAYER = 9
"""Kernels: two norms, four products, rotation, attention, activation."""


def count_step(folder: Path, case: str, *, enforce_eager: bool) -> StepCounts:
    """Returns the counts of one step, with another in flight; a wait fails."""
    counts = StepCounts()
    with counted(counts):
        runner = make_runner(folder, CountedGraphs(counts), enforce_eager=enforce_eager)
        steps = islice(steps_of(runner, CASES[case]), 3)
        next(steps), next(steps)
        counts.clear()
        next(steps)
    triton.unregister_ops("meta")
    return counts


@pytest.mark.parametrize("case", ["decode 256", "decode 256, greedy", "mixed"])
def test_a_step_is_a_graph_a_draw_and_four_copies(tmp_path: Path, case: str) -> None:
    counts = count_step(tmp_path, case, enforce_eager=False)
    assert counts.graphs == 1
    assert counts.launches <= 6, counts.operators
    assert counts.copies_in <= 2
    assert counts.copies_out <= 2
    assert counts.tensors_made <= 3


def test_penalties_of_some_rows_take_a_copy_of_their_logits(tmp_path: Path) -> None:
    counts = count_step(tmp_path, "decode 256, some with penalties", enforce_eager=False)
    assert counts.graphs == 1
    assert counts.launches <= 15, counts.operators
    assert counts.copies_in <= 6
    assert counts.copies_out <= 2
    assert counts.tensors_made <= 15


def test_log_probabilities_of_some_rows_are_copied_back_behind_the_draws(tmp_path: Path) -> None:
    counts = count_step(tmp_path, "decode 256, some with log probabilities", enforce_eager=False)
    assert counts.graphs == 1
    assert counts.launches <= 15, counts.operators
    assert counts.copies_in <= 3
    assert counts.copies_out <= 6
    assert counts.tensors_made <= 15


@pytest.mark.parametrize("case", ["decode 256", "mixed"])
def test_an_eager_step_launches_the_kernels_of_each_layer_once(tmp_path: Path, case: str) -> None:
    counts = count_step(tmp_path, case, enforce_eager=True)
    assert counts.graphs == 0
    assert counts.launches <= IN_A_LAYER * LAYERS + 14, counts.operators
    assert counts.copies_in <= 4
    assert counts.copies_out <= 2
    assert counts.tensors_made <= 12 * LAYERS
