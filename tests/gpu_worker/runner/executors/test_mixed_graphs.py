"""Steps of prompts and decodes as recorded graphs: the tokens of eager steps, beside padding."""

from pathlib import Path

import numpy as np
import pytest
import torch

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.runner.executors import step_graphs
from signalbox_worker.runner.executors.step_graphs import graph_sizes, ladder, mixed_ladder
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.device.recorded_graphs import GraphsOnCpu
from tests.gpu_worker.generation import Driver, make_batch, make_sequence
from tests.gpu_worker.models.attention.device_attention import make_device_runner
from tests.gpu_worker.tiny_models import VOCAB, make_model

pytestmark = pytest.mark.slow

RANDOM = SamplingParams(temperature=1.0, seed=11)
LENGTHS = (3, 70, 9, 1, 101)
MAX_TOKENS = 128


def generate(runner: LocalRunner, params: SamplingParams) -> list[list[int]]:
    """Prompts begin one step after the other, in chunks, while the ones before decode."""
    rng = np.random.default_rng(3)
    sequences = [
        make_sequence(rng.integers(3, VOCAB, length), range(8 * i + 1, 8 * i + 9), params, branch=i)
        for i, length in enumerate(LENGTHS)
    ]
    driver = Driver(runner=runner, chunk=40)
    for step in range(9):
        driver.step(sequences[: step + 1])
    assert not any(samples.failed for samples in driver.samples)
    return [sequence.token_ids for sequence in sequences]


def written_blocks(runner: LocalRunner) -> set[int]:
    return {int(block) for block in runner.pools.gpu_pool.any(dim=1).nonzero()}


@pytest.mark.parametrize("params", [SamplingParams(), RANDOM], ids=["greedy", "random"])
def test_padded_graphs_draw_the_tokens_of_eager_steps(tiny: Path, params: SamplingParams) -> None:
    expected = generate(make_device_runner(tiny, None, backend="torch", num_gpu_blocks=50), params)
    recorder = GraphsOnCpu()
    runner = make_device_runner(tiny, recorder, max_graph_tokens=MAX_TOKENS, num_gpu_blocks=50)
    runner.pools.gpu_pool.fill_(0xFF)  # a NaN wherever nobody has written
    assert generate(runner, params) == expected
    assert recorder.num_captured == len(mixed_ladder(MAX_TOKENS)) + len(ladder(8)) == 2 + 4
    assert recorder.num_replayed == 9


def test_padding_leaves_no_trace_in_the_pool(tiny: Path) -> None:
    runner = make_device_runner(tiny, GraphsOnCpu(), max_graph_tokens=MAX_TOKENS, num_gpu_blocks=50)
    assert not runner.pools.gpu_pool.any(), "recording has written to blocks"
    generate(runner, RANDOM)
    eager = make_device_runner(tiny, None, backend="torch", num_gpu_blocks=50)
    generate(eager, RANDOM)
    assert written_blocks(runner) == written_blocks(eager)
    assert 0 not in written_blocks(runner)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # padding computes on what memory held
def test_graphs_of_tritons_kernels_draw_the_same(
    triton_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if triton_device != "cpu":
        pytest.skip("graphs on a GPU are tested in tests/gpu")
    monkeypatch.setattr(step_graphs, "ladder", lambda max_num_seqs: [max_num_seqs])
    make_model(tmp_path, num_hidden_layers=1)
    recorder = GraphsOnCpu()
    runner = make_device_runner(
        tmp_path, recorder, backend="triton", sampling="triton", max_num_seqs=4, max_graph_tokens=32
    )
    runner.pools.gpu_pool.fill_(0xFF)
    filtered = SamplingParams(temperature=1.1, seed=11, top_k=20, top_p=0.9)
    prompts = [[5, 17, 40], [8], list(range(3, 20))]
    found = Driver(runner=runner, chunk=9).generate(prompts, num_tokens=3, params=filtered)
    assert recorder.num_replayed == 4

    from signalbox_kernels import triton

    triton.unregister_ops("cpu")
    plain = make_device_runner(tmp_path, None, backend="torch")
    driver = Driver(runner=plain, chunk=9)
    assert found == driver.generate(prompts, num_tokens=3, params=filtered)


def test_longer_steps_and_those_that_report_prompts_stay_eager(tiny: Path) -> None:
    recorder = GraphsOnCpu()
    runner = make_device_runner(tiny, recorder, max_graph_tokens=MAX_TOKENS, num_gpu_blocks=50)
    graphs = runner.executor.graphs
    assert graphs is not None
    work = [
        (make_sequence(range(3, 3 + length), range(8 * i + 1, 8 * i + 9)), length)
        for i, length in enumerate((60, 68, 1))
    ]
    fitting, longer = (make_batch(work[:count], block_size=16) for count in (2, 3))
    assert graphs.size_for(fitting) is not None
    assert graphs.size_for(longer) is None
    runner.execute(longer)
    assert recorder.num_replayed == 0
    runner.execute(fitting)
    assert recorder.num_replayed == 1


def test_a_chunk_without_draws_is_a_graph(tiny: Path) -> None:
    recorder = GraphsOnCpu()
    runner = make_device_runner(tiny, recorder, max_graph_tokens=MAX_TOKENS)
    batch = make_batch([(make_sequence(range(3, 90), range(1, 8)), 50)], block_size=16)
    assert len(runner.execute(batch).token_ids) == 0
    assert recorder.num_replayed == 1


def test_memory_is_that_of_the_largest_graphs_of_each_kind(tiny: Path) -> None:
    recorder = GraphsOnCpu(bytes_each=(5000, 30, 7, 2))
    runner = make_device_runner(tiny, recorder, max_graph_tokens=192)
    recorder.num_captured = 0
    graphs = runner.executor.graphs
    assert graphs is not None
    with torch.inference_mode():
        assert graphs.measure() == 5000 + 2 * 30 + 7 + 3 * 2  # of 3 mixed sizes, and of 4
    assert recorder.num_captured == 4


@pytest.mark.parametrize(
    ("max_tokens", "sizes"),
    [
        (0, []),
        (50, [50]),
        (64, [64]),
        (200, [64, 128, 192, 200]),
        (1100, [*range(64, 1088, 64), 1100]),
    ],
)
def test_sizes_of_mixed_steps_end_with_the_largest(max_tokens: int, sizes: list[int]) -> None:
    assert mixed_ladder(max_tokens) == sizes
    for size in graph_sizes(max_num_seqs=100, max_tokens=max_tokens):
        assert size.num_seqs == (min(size.num_tokens, 100))
