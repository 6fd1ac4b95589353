"""Decode steps as recorded graphs: the tokens of eager steps, in buffers that stay in place."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.config import CacheConfig
from signalbox_worker.kv.cache import capacity
from signalbox_worker.kv.cache.measured_device import HostDevice
from signalbox_worker.runner.executors import step_graphs
from signalbox_worker.runner.executors.async_executor import AsyncExecutor
from signalbox_worker.runner.executors.graph_inputs import GraphSize
from signalbox_worker.runner.executors.step_graphs import ladder
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.device.recorded_graphs import CountedGraph, GraphsOnCpu
from tests.gpu_worker.generation import Driver, Generated, make_batch, make_sequence
from tests.gpu_worker.models.attention.device_attention import make_device_runner
from tests.gpu_worker.tiny_models import VOCAB, make_model

pytestmark = pytest.mark.slow

RANDOM = SamplingParams(temperature=1.0, seed=11)
LENGTHS = (3, 26, 9, 40, 1)


def step_of(runner: LocalRunner) -> AsyncExecutor:
    assert isinstance(runner.executor, AsyncExecutor)
    return runner.executor


def make_sequences(params: SamplingParams) -> list[Generated]:
    """Block 0 is nobody's: only padding may look at it."""
    rng = np.random.default_rng(3)
    return [
        make_sequence(rng.integers(3, VOCAB, length), range(6 * i + 1, 6 * i + 7), params, branch=i)
        for i, length in enumerate(LENGTHS)
    ]


def generate(runner: LocalRunner, params: SamplingParams) -> list[list[int]]:
    """Sequences end one after the other, so that steps of all sizes are computed."""
    sequences, driver = make_sequences(params), Driver(runner=runner)
    for num_left in range(len(sequences), 0, -1):
        for _ in range(4):
            driver.step(sequences[:num_left])
    assert not any(samples.failed for samples in driver.samples)
    return [sequence.token_ids for sequence in sequences]


@pytest.mark.parametrize("params", [SamplingParams(), RANDOM], ids=["greedy", "random"])
def test_padded_graphs_draw_the_tokens_of_eager_steps(tiny: Path, params: SamplingParams) -> None:
    expected = generate(make_device_runner(tiny, None, backend="torch"), params)
    recorder = GraphsOnCpu()
    runner = make_device_runner(tiny, recorder)
    runner.pools.gpu_pool.fill_(0xFF)  # a NaN wherever nobody has written
    assert generate(runner, params) == expected
    assert recorder.num_captured == len(ladder(8)) == 4
    assert recorder.num_replayed == 4 * len(LENGTHS) - 1  # all but the prefill


def test_graphs_of_tritons_kernels_draw_the_same(
    triton_device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if triton_device != "cpu":
        pytest.skip("graphs on a GPU are tested in tests/gpu")
    monkeypatch.setattr(step_graphs, "ladder", lambda max_num_seqs: [max_num_seqs])
    make_model(tmp_path, num_hidden_layers=1)
    recorder = GraphsOnCpu()
    runner = make_device_runner(
        tmp_path, recorder, backend="triton", sampling="triton", max_num_seqs=4
    )
    runner.pools.gpu_pool.fill_(0xFF)
    filtered = SamplingParams(temperature=1.1, seed=11, top_k=20, top_p=0.9)
    prompts = [[5, 17, 40], [8], list(range(3, 10))]
    found = Driver(runner=runner).generate(prompts, num_tokens=3, params=filtered)
    assert recorder.num_replayed == 2

    from signalbox_kernels import triton

    triton.unregister_ops("cpu")
    plain = make_device_runner(tmp_path, None, backend="torch")
    assert found == Driver(runner=plain).generate(prompts, num_tokens=3, params=filtered)


def test_graphs_of_mixtures_draw_the_same(triton_device: str, tmp_path: Path) -> None:
    """Rows of padding go to experts, too, and change nothing."""
    if triton_device != "cpu":
        pytest.skip("graphs on a GPU are tested in tests/gpu")
    make_model(tmp_path, "qwen3-moe", num_hidden_layers=1)
    recorder = GraphsOnCpu()
    runner = make_device_runner(tmp_path, recorder)
    assert runner.executor.num_graphs == len(ladder(8))
    runner.pools.gpu_pool.fill_(0xFF)
    found = generate(runner, RANDOM)
    assert recorder.num_replayed == 4 * len(LENGTHS) - 1

    from signalbox_kernels import triton

    triton.unregister_ops("cpu")
    assert found == generate(make_device_runner(tmp_path, None, backend="torch"), RANDOM)


def test_padding_leaves_no_trace_in_the_pool(tiny: Path) -> None:
    runner = make_device_runner(tiny, GraphsOnCpu())
    assert not runner.pools.gpu_pool.any(), "recording has written to blocks"
    generate(runner, RANDOM)
    assert not runner.pools.gpu_pool[0].any()
    written = {int(block) for block in runner.pools.gpu_pool.any(dim=1).nonzero()}
    assert written <= {b for s in make_sequences(RANDOM) for b in s.blocks}


def test_buffers_stay_where_they_are(tiny: Path) -> None:
    runner = make_device_runner(tiny, GraphsOnCpu())
    graphs = step_of(runner).graphs
    assert graphs is not None

    def places() -> list[int]:
        assert graphs is not None
        inputs = graphs._buffers.inputs(GraphSize(8, 8, is_decode=True))
        tensors = (*inputs[:-1], graphs._logits, graphs._drawn)
        return [tensor.data_ptr() for tensor in tensors]

    before = places()
    first = generate(runner, RANDOM)
    runner.init_cache_engine(num_gpu_blocks=31, num_cpu_blocks=0)
    assert not runner.pools.gpu_pool.any()  # older batches are forgotten, not stored again
    assert generate(runner, RANDOM) == first
    assert places() == before


def test_work_that_waits_for_the_device_is_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tmp_path, "mixtral")  # PyTorch asks how many tokens an expert gets
    recorder = GraphsOnCpu()
    runner = make_device_runner(tmp_path, recorder)
    assert "no graphs, steps are launched kernel by kernel" in caplog.text
    expected = generate(make_device_runner(tmp_path, None, backend="torch"), RANDOM)
    assert generate(runner, RANDOM) == expected
    assert recorder.num_captured == recorder.num_replayed == 0


def test_graphs_that_memory_does_not_suffice_for_are_done_without(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = GraphsOnCpu()
    capture = recorder.capture

    def capture_three(work: Callable[[], None]) -> CountedGraph:
        if recorder.num_captured % 4 == 3:
            raise torch.OutOfMemoryError("CUDA out of memory\nin many lines")
        return capture(work)

    monkeypatch.setattr(recorder, "capture", capture_three)
    runner = make_device_runner(tiny, recorder)
    assert "launched kernel by kernel: CUDA out of memory" in caplog.text
    assert runner.executor.num_graphs == 0
    assert runner.profile().num_gpu_blocks > 0
    runner.init_cache_engine(num_gpu_blocks=40, num_cpu_blocks=0)
    expected = generate(make_device_runner(tiny, None, backend="torch"), RANDOM)
    assert generate(runner, RANDOM) == expected


def test_a_rank_without_memory_for_graphs_says_so(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = GraphsOnCpu()
    runner = make_device_runner(tiny, recorder)

    def capture_none(work: Callable[[], None]) -> CountedGraph:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert runner.executor.graphs is not None
    monkeypatch.setattr(runner.executor.graphs, "_num_ranks", 2)
    monkeypatch.setattr(recorder, "capture", capture_none)
    for call in (
        runner.profile,
        partial(runner.init_cache_engine, num_gpu_blocks=9, num_cpu_blocks=0),
    ):
        with pytest.raises(MemoryError, match="set enforce_eager"):  # the other waits for it
            call()
    assert runner.executor.num_graphs == 0


def test_enforce_eager_records_nothing(tiny: Path) -> None:
    recorder = GraphsOnCpu()
    generate(make_device_runner(tiny, recorder, enforce_eager=True), RANDOM)
    assert recorder.num_captured == 0


def test_mixed_and_reporting_steps_are_eager_or_waited_for(tiny: Path) -> None:
    recorder = GraphsOnCpu()
    runner = make_device_runner(tiny, recorder)
    filtered = SamplingParams(temperature=0.8, top_k=9, top_p=0.9, seed=5, num_logprobs=2)
    expected = make_device_runner(tiny, None, backend="torch")
    mixed = []
    for each in (runner, expected):
        one, two, *_ = make_sequences(filtered)
        driver = Driver(runner=each, chunk=8)
        for _ in range(8):  # `two` is in its prompt while `one` decodes
            work = [(s, min(s.num_left, 8)) for s in (one, two)]
            samples = each.execute(make_batch(work, block_size=16))
            for sequence, count in work:
                sequence.num_computed += count
            drawing = [s for s, _ in work if not s.num_left]
            for sequence, token in zip(drawing, samples.token_ids.tolist(), strict=True):
                sequence.token_ids.append(token)
            driver.samples.append(samples)
        ranks = [(p.row, p.rank, p.top_token_ids) for s in driver.samples for p in s.logprobs]
        mixed.append((one.token_ids, two.token_ids, ranks))
    assert mixed[0] == mixed[1]
    assert recorder.num_replayed == 4


def test_memory_of_graphs_is_kept_from_the_kv_cache(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def budget(config: CacheConfig, device: HostDevice, bytes_taken: int, **_: int) -> int:
        taken.append(bytes_taken)
        return 1 << 20

    monkeypatch.setattr(capacity, "_budget", budget)
    monkeypatch.setattr(HostDevice, "peak_growth", lambda device, work: (work(), 100)[1])
    runner = make_device_runner(tiny, None)
    recorder = GraphsOnCpu(bytes_each=(5000, 30))
    recording = make_device_runner(tiny, recorder)
    recorder.num_captured = 0
    for each in (runner, recording):
        assert each.profile().activations_bytes == 100
    assert taken == [100, 100 + 5000 + 3 * 30]
    assert recorder.num_captured == 2


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [(1, [1]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (20, [1, 2, 4, 8, 16, 20])],
)
def test_ladder_ends_with_the_largest_batch(max_num_seqs: int, sizes: list[int]) -> None:
    assert ladder(max_num_seqs) == sizes
