"""The native sampler against PyTorch's: the same tokens from the same logits, set by set."""

import math
import random

import numpy as np
import pytest
import torch

from contract.sampling_params import SamplingParams
from gpu_worker.batch.batch import BatchOutput
from gpu_worker.sampling.native_sampler import CpuSampler
from gpu_worker.sampling.sampler import Sampler
from gpu_worker.sampling.torch_sampler import TorchSampler
from signalbox_kernels import native
from signalbox_kernels.native import Isa, NativeUnavailable
from signalbox_kernels.sampling import NativeSampler
from tests.gpu_worker.generation import make_rows
from tests.gpu_worker.sampling.draws import assert_same, make_history, make_logits, random_params

try:
    ISAS = native.available_isas()
except NativeUnavailable:
    pytest.skip("no C++ compiler, and no library that was built before", allow_module_level=True)

SIZES = [1, 2, 15, 16, 33, 1000, 49152]


def make_samplers(vocab_size: int, isa: Isa | None = None) -> tuple[Sampler, Sampler]:
    """Returns the native sampler and PyTorch's."""
    ours = CpuSampler(program=None, num_threads=2)
    if isa is not None:
        ours._native = NativeSampler(num_threads=2, isa=isa)
    return ours, TorchSampler(vocab_size=vocab_size, device=torch.device("cpu"))


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("vocab_size", SIZES)
def test_any_parameters_draw_what_torch_draws(vocab_size: int, isa: Isa) -> None:
    rng = random.Random(vocab_size)
    params = [random_params(rng, vocab_size) for _ in range(30 if vocab_size > 10_000 else 200)]
    rows = make_history(params, vocab_size)
    ours, theirs = make_samplers(vocab_size, isa)
    logits = make_logits(len(params), vocab_size)
    assert_same(ours(logits, rows), theirs(logits, rows))


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_the_race_has_the_documented_bits(isa: Isa) -> None:
    """Of equal weights the least exponential wins, which the hash alone decides."""
    count, vocab_size = 300, 5003
    rows = make_rows(
        [SamplingParams(temperature=1.0, seed=2**64 - 1 - i) for i in range(count)],
        token_index=range(count),
        branch=range(count),
        position=range(1, count + 1),
    )
    ours, theirs = make_samplers(vocab_size, isa)
    flat = torch.zeros(count, vocab_size)
    assert ours(flat, rows).token_ids.tolist() == theirs(flat, rows).token_ids.tolist()


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_a_nucleus_of_any_shape_is_torchs(scale: float, top_p: float) -> None:
    params = [SamplingParams(temperature=1.0, top_p=top_p, seed=i) for i in range(100)]
    rows = make_rows(params, token_index=range(100))
    ours, theirs = make_samplers(3000)
    logits = make_logits(100, 3000, scale=scale)
    assert_same(ours(logits, rows), theirs(logits, rows))


def test_ties_at_an_edge_are_kept() -> None:
    row = torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0])
    ours, _ = make_samplers(5)
    for edge in ({"top_k": 2}, {"top_p": 0.6}):
        params = [SamplingParams(temperature=1.0, seed=i, **edge) for i in range(500)]  # type: ignore[arg-type]
        rows = make_rows(params, token_index=range(500))
        assert set(ours(row.expand(500, -1), rows).token_ids.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 5, 999])
def test_a_row_that_is_not_finite_fails_alone(value: float, place: int) -> None:
    params = [SamplingParams(temperature=t, top_p=0.9, num_logprobs=2) for t in (0.0, 1.0, 1.0)]
    rows = make_rows(params, token_index=range(3))
    ours, theirs = make_samplers(1000)
    logits = make_logits(3, 1000)
    logits[1, place] = value
    samples = ours(logits, rows)
    assert samples.failed == {1: "logits are not finite"}
    assert_same(samples, theirs(logits, rows))


def test_rows_may_share_logits() -> None:
    params = [SamplingParams(temperature=1.0, top_k=20, num_logprobs=1) for _ in range(6)]
    rows = make_rows(params, token_index=[0] * 6, branch=range(6))
    ours, theirs = make_samplers(1000)
    logits, of_row = make_logits(2, 1000), np.array([1, 1, 0, 1, 0, 0])
    assert_same(ours(logits, rows, of_row), theirs(logits, rows, of_row))


def test_counts_of_one_batch_do_not_leak_into_the_next() -> None:
    params = [SamplingParams(repetition_penalty=5.0, presence_penalty=2.0)] * 4
    ours, theirs = make_samplers(100)
    logits = make_logits(4, 100)
    for _ in range(3):
        rows = make_history(params, 100)
        assert_same(ours(logits, rows), theirs(logits, rows))


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name)
def test_logprobs_of_given_tokens_are_torchs(isa: Isa) -> None:
    ours, theirs = make_samplers(1000, isa)
    logits, targets = make_logits(9, 1000), np.arange(0, 900, 100, dtype=np.int32)
    logits[4, 3] = math.nan
    counts = np.array([0, 1, 2, 128, 5, 0, 3, 20, 7])
    mine, other = ours.logprobs(logits, targets, counts), theirs.logprobs(logits, targets, counts)
    assert math.isnan(mine.pop(4).logprob)
    other.pop(4)
    assert_same(
        BatchOutput(token_ids=np.empty(0, dtype=np.int32), logprobs=mine),
        BatchOutput(token_ids=np.empty(0, dtype=np.int32), logprobs=other),
    )
