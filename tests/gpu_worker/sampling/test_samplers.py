"""The native sampler and Triton's against PyTorch's: the same tokens from the same logits."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_contract.sampling_params import SamplingParams
from signalbox_kernels.native import Isa, NativeUnavailable
from signalbox_kernels.sampling import NativeSampler
from signalbox_worker.batch.batch import BatchOutput
from signalbox_worker.batch.sampling_rows import SampleRows
from signalbox_worker.sampling.native_sampler import CpuSampler
from signalbox_worker.sampling.sampler import Sampler
from signalbox_worker.sampling.sampler_factory import NativeTensorSampler
from signalbox_worker.sampling.torch_sampler import TorchSampler
from tests.gpu_worker.generation import make_rows
from tests.gpu_worker.sampling.draws import assert_same, make_history, make_logits, random_params
from tests.native_kernels import available_isas

try:
    ISAS = available_isas()
except NativeUnavailable:
    ISAS = ()


class Kind(NamedTuple):
    """A sampler, and how many rows and tokens it draws in a reasonable time."""

    name: str
    isa: Isa | None
    num_rows: int
    vocab_sizes: tuple[int, ...]


NATIVE = [Kind(isa.name, isa, 200, (1, 2, 15, 16, 33, 1000, 49152)) for isa in ISAS]
TRITON = Kind("triton", None, 20, (1, 33, 5000))  # interpreted, without a GPU
KINDS = [*NATIVE, pytest.param(TRITON, marks=pytest.mark.slow)]


@dataclass(frozen=True, slots=True)
class Compared:
    """A sampler beside PyTorch's."""

    kind: Kind
    make: Callable[[], Sampler[Tensor]]
    device: str

    def draw(
        self, logits: Tensor, rows: SampleRows, logits_row: NDArray[np.int64] | None = None
    ) -> BatchOutput:
        """Returns what the sampler draws, which is what PyTorch's draws."""
        logits = logits.to(self.device)
        samples = self.make()(logits, rows, logits_row)
        assert_same(samples, self.reference(logits.shape[1])(logits, rows, logits_row))
        return samples

    def reference(self, vocab_size: int) -> Sampler[Tensor]:
        return TorchSampler(vocab_size=vocab_size, device=torch.device(self.device))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def compared(request: pytest.FixtureRequest) -> Compared:
    kind: Kind = request.param
    if kind is TRITON:
        device = request.getfixturevalue("triton_device")
        from signalbox_worker.sampling.triton_sampler import TritonSampler

        return Compared(kind, lambda: TritonSampler(device=torch.device(device)), device)

    def make_native() -> Sampler[Tensor]:
        sampler = CpuSampler(program=None, num_threads=2)
        sampler._native = NativeSampler(num_threads=2, isa=kind.isa)
        return NativeTensorSampler(sampler)

    return Compared(kind, make_native, "cpu")


def test_any_parameters_draw_what_torch_draws(compared: Compared) -> None:
    for vocab_size in compared.kind.vocab_sizes:
        rng = random.Random(vocab_size)
        num_rows = min(compared.kind.num_rows, 30 if vocab_size > 10_000 else 200)
        params = [random_params(rng, vocab_size) for _ in range(num_rows)]
        compared.draw(make_logits(num_rows, vocab_size), make_history(params, vocab_size))


def test_the_race_has_the_documented_bits(compared: Compared) -> None:
    """Of equal weights the least exponential wins, which the hash alone decides."""
    count = 60 if compared.kind is TRITON else 300
    rows = make_rows(
        [SamplingParams(temperature=1.0, seed=2**64 - 1 - i) for i in range(count)],
        token_index=range(count),
        branch=range(count),
        position=range(1, count + 1),
    )
    compared.draw(torch.zeros(count, 5003), rows)


@pytest.mark.parametrize(
    "filters",
    [
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"top_k": 40},
        {"min_p": 0.05},
        {"top_k": 300, "top_p": 0.5, "min_p": 0.001},
    ],
)
@pytest.mark.parametrize("scale", [0.01, 3.0])  # nearly flat, and as models are
def test_the_same_set_is_kept(compared: Compared, filters: dict[str, float], scale: float) -> None:
    """One row over many positions: a token that one keeps and the other drops would be drawn."""
    params = [SamplingParams(temperature=1.0, seed=7, **filters)] * 40  # type: ignore[arg-type]
    rows = make_rows(params, token_index=range(40), position=range(1, 41))
    compared.draw(make_logits(1, 700, scale=scale).expand(40, -1), rows)


@pytest.mark.parametrize("compared", NATIVE, indirect=True, ids=lambda kind: kind.name)
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_a_nucleus_of_any_shape_is_torchs(compared: Compared, scale: float, top_p: float) -> None:
    params = [SamplingParams(temperature=1.0, top_p=top_p, seed=i) for i in range(100)]
    rows = make_rows(params, token_index=range(100))
    compared.draw(make_logits(100, 3000, scale=scale), rows)


@pytest.mark.parametrize("edge", [{"top_k": 2}, {"top_p": 0.6}])
def test_ties_at_an_edge_are_kept(compared: Compared, edge: dict[str, float]) -> None:
    row = torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0])
    count = 80 if compared.kind is TRITON else 500
    params = [SamplingParams(temperature=1.0, seed=i, **edge) for i in range(count)]  # type: ignore[arg-type]
    drawn = compared.draw(row.expand(count, -1), make_rows(params, token_index=range(count)))
    assert set(drawn.token_ids.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_may_share_logits(compared: Compared, dtype: torch.dtype) -> None:
    params = [
        SamplingParams(
            temperature=1.0, top_k=20, num_logprobs=1, seed=i, logit_bias=((3, 2.0),) * i
        )
        for i in (0, 1, 0, 1, 0, 0)
    ]
    rows = make_rows(params, token_index=[0] * 6, branch=range(6), vocab_size=1000)
    compared.draw(make_logits(2, 1000).to(dtype), rows, np.array([1, 1, 0, 1, 0, 0]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # log probabilities of failed rows are unread
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(compared: Compared, value: float) -> None:
    params = [
        SamplingParams(temperature=t, top_p=0.9, repetition_penalty=penalty, num_logprobs=2)
        for t, penalty in ((0.0, 1.0), (1.0, 1.0), (1.0, 1.5), (1.0, 1.5), (1.0, 1.0))
    ]
    logits = make_logits(5, 1000)
    logits[1, 5] = logits[2, 999] = logits[4, 0] = value
    samples = compared.draw(logits, make_history(params, 1000))
    assert samples.failed == dict.fromkeys((1, 2, 4), "logits are not finite")


def test_a_row_without_any_token_left_fails_alone(compared: Compared) -> None:
    rows = make_rows([SamplingParams()] * 2, token_index=[0, 1], suppressed={0: tuple(range(5))})
    assert compared.draw(make_logits(2, 5), rows).failed == {0: "every token is suppressed"}


def test_counts_of_one_batch_do_not_leak_into_the_next(compared: Compared) -> None:
    params = [SamplingParams(repetition_penalty=5.0, presence_penalty=2.0)] * 4
    ours, theirs = compared.make(), compared.reference(100)
    logits = make_logits(4, 100).to(compared.device)
    for _ in range(3):
        rows = make_history(params, 100)
        assert_same(ours(logits, rows), theirs(logits, rows))


def test_logprobs_of_given_tokens_are_torchs(compared: Compared) -> None:
    logits, targets = make_logits(9, 1000), np.arange(0, 900, 100, dtype=np.int32)
    if compared.kind is not TRITON:
        logits[4, 3] = math.nan
    counts = np.array([0, 1, 2, 128, 5, 0, 3, 20, 7])
    logits = logits.to(compared.device)
    mine, other = (
        sampler.logprobs(logits, targets, counts)
        for sampler in (compared.make(), compared.reference(1000))
    )
    assert math.isnan(mine.pop(4).logprob) is (compared.kind is not TRITON)
    other.pop(4)
    nothing = np.empty(0, dtype=np.int32)
    assert_same(
        BatchOutput(token_ids=nothing, logprobs=mine),
        BatchOutput(token_ids=nothing, logprobs=other),
    )
