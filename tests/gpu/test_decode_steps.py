"""Steps on a card: graphs draw what eager steps draw, and nothing waits, or is compiled late.

`tests/gpu_worker/runner/executors/test_tests_of_a_card.py` runs what it can of it on a CPU.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.batch.batch import Batch
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.runner.executors.step_graphs import graph_sizes
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.service.runner_factory import make_runner as load_runner
from tests.gpu_worker.generation import Driver, Generated, add_history, make_batch, make_sequence
from tests.gpu_worker.tiny_models import VOCAB, make_model

GREEDY = SamplingParams()
FILTERED = SamplingParams(temperature=0.9, seed=4, top_k=30, top_p=0.9)
REPORTED = SamplingParams(temperature=0.9, seed=4, num_logprobs=2)
EDITED = SamplingParams(presence_penalty=0.5, logit_bias=((7, 1.0),))
LENGTHS = (3, 26, 9, 40, 1)
MAX_SEQS, MAX_GRAPH_TOKENS = 8, 128
NUM_GRAPHS = len(graph_sizes(max_num_seqs=MAX_SEQS, max_tokens=MAX_GRAPH_TOKENS))
KINDS = pytest.mark.parametrize("params", [GREEDY, FILTERED], ids=["greedy", "filtered"])
LAUNCHES = pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_model(path)
    return path


def make_runner(
    path: Path,
    *,
    enforce_eager: bool = False,
    backend: Literal["triton", "torch"] = "triton",
    sampling: Literal["triton", "torch"] = "triton",
) -> LocalRunner:
    runner = load_runner(
        RunnerConfig(
            model=ModelConfig(model=str(path), dtype="float32", max_model_len=128),
            cache=CacheConfig(max_num_seqs=MAX_SEQS, swap_space=0),
            device=DeviceConfig(
                device="cuda",
                attention_backend=backend,
                sampling_backend=sampling,
                linear_backend=backend,
                enforce_eager=enforce_eager,
                max_cudagraph_capture_size=MAX_GRAPH_TOKENS,
            ),
        )
    )
    runner.init_cache_engine(num_gpu_blocks=40, num_cpu_blocks=0)
    return runner


def make_sequences(params: SamplingParams) -> list[Generated]:
    rng = np.random.default_rng(3)
    return [
        make_sequence(rng.integers(3, VOCAB, length), range(6 * i + 1, 6 * i + 7), params, branch=i)
        for i, length in enumerate(LENGTHS)
    ]


def generate(runner: LocalRunner, params: SamplingParams) -> list[list[int]]:
    sequences, driver = make_sequences(params), Driver(runner=runner)
    for num_left in range(len(sequences), 0, -1):
        for _ in range(4):
            driver.step(sequences[:num_left])
    return [sequence.token_ids for sequence in sequences]


def batches_ahead(sequences: list[Generated], num_steps: int) -> Iterator[Batch]:
    """Decode batches of prefilled sequences, whose tokens but the first are those just drawn."""
    for step in range(num_steps):
        batch = make_batch([(sequence, 1) for sequence in sequences], block_size=16)
        if step:
            batch.token_ids[:] = 0
            batch.fed_from = np.arange(len(sequences))
        yield batch
        for sequence in sequences:
            sequence.num_computed += 1
            sequence.token_ids.append(0)


@contextmanager
def waits_refused() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@KINDS
def test_graphs_draw_what_eager_steps_and_pytorch_draw(tiny: Path, params: SamplingParams) -> None:
    runner = make_runner(tiny)
    assert runner.executor.num_graphs == NUM_GRAPHS
    runner.pools.gpu_pool.fill_(0xFF)  # a NaN wherever nobody has written
    found = generate(runner, params)
    assert generate(make_runner(tiny, enforce_eager=True), params) == found
    plain = make_runner(tiny, backend="torch", sampling="torch")
    assert generate(plain, params) == found


@KINDS
@LAUNCHES
def test_steps_in_flight_wait_for_nothing_and_feed_their_draws(
    tiny: Path, params: SamplingParams, enforce_eager: bool
) -> None:
    expected = generate(make_runner(tiny, enforce_eager=True), params)
    runner = make_runner(tiny, enforce_eager=enforce_eager)
    generate(runner, params)  # compiles, and allocates what stays
    runner.init_cache_engine(num_gpu_blocks=40, num_cpu_blocks=0)
    sequences = make_sequences(params)
    Driver(runner=runner).step(sequences)
    with waits_refused():
        launched = [runner.launch(batch) for batch in batches_ahead(sequences, 3)]
    found = np.stack([step.samples().token_ids for step in launched], axis=1).tolist()
    assert found == [
        tokens[start + 1 : start + 4] for tokens, start in zip(expected, LENGTHS, strict=True)
    ]


@LAUNCHES
def test_steps_after_the_start_compile_nothing(
    tiny: Path, enforce_eager: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runner = make_runner(tiny, enforce_eager=enforce_eager)
    with caplog.at_level(logging.WARNING):
        for params in (GREEDY, FILTERED, REPORTED):
            generate(runner, params)
        sequences = make_sequences(EDITED)
        batch = make_batch([(sequence, sequence.num_left) for sequence in sequences], block_size=16)
        tokens = [sequence.token_ids for sequence in sequences]
        add_history(batch.rows, [EDITED] * len(tokens), tokens, LENGTHS, vocab_size=VOCAB)
        assert not runner.execute(batch).failed
    assert "was compiled while requests were served" not in caplog.text


def test_times_of_a_step_are_the_devices(tiny: Path) -> None:
    runner = make_runner(tiny)
    sequences = make_sequences(GREEDY)
    Driver(runner=runner).step(sequences)
    samples = Driver(runner=runner).step(sequences)
    assert 0 < samples.forward_ns < 10**9
    assert 0 <= samples.sample_ns < 10**9


def test_profiling_counts_graphs_and_leaves_none(tiny: Path) -> None:
    runner = make_runner(tiny)
    assert runner.profile().num_gpu_blocks > 0
    assert runner.executor.num_graphs == 0
    runner.init_cache_engine(num_gpu_blocks=40, num_cpu_blocks=0)
    assert runner.executor.num_graphs == NUM_GRAPHS
