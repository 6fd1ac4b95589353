"""Triton's sampler against PyTorch's: the same tokens from the same logits, interpreted."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from contract.sampling_params import SamplingParams
from gpu_worker.config import DeviceConfig
from gpu_worker.device.device_choice import streams_of
from gpu_worker.device.input_transfer import NUM_BUFFERS, InputPacker, PinnedBuffers
from gpu_worker.layers import ParallelGroup, Placement
from gpu_worker.sampling import sampler_factory
from gpu_worker.sampling.native_sampler import CpuSampler
from gpu_worker.sampling.sampler import NoSampler, Sampler
from gpu_worker.sampling.sampler_factory import make_sampler
from gpu_worker.sampling.torch_sampler import TorchSampler
from signalbox_kernels import triton
from tests.gpu_worker.generation import make_rows
from tests.gpu_worker.sampling.draws import assert_same, make_history, make_logits, random_params

pytestmark = pytest.mark.slow


def make_samplers(vocab_size: int, device: str) -> tuple[Sampler, Sampler]:
    """Returns Triton's sampler and PyTorch's."""
    from gpu_worker.sampling.triton_sampler import TritonSampler

    where = torch.device(device)
    return TritonSampler(device=where), TorchSampler(vocab_size=vocab_size, device=where)


def make_placement(device: str = "cpu") -> Placement:
    return Placement(torch.device(device), torch.float32)


@pytest.mark.parametrize(("vocab_size", "num_rows"), [(1, 4), (33, 20), (5000, 12)])
def test_any_parameters_draw_what_torch_draws(
    triton_device: str, vocab_size: int, num_rows: int
) -> None:
    rng = random.Random(vocab_size)
    params = [random_params(rng, vocab_size) for _ in range(num_rows)]
    rows = make_history(params, vocab_size)
    ours, theirs = make_samplers(vocab_size, triton_device)
    logits = make_logits(num_rows, vocab_size).to(triton_device)
    assert_same(ours(logits, rows), theirs(logits, rows))


def test_columns_may_go_in_packed_copies(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in few of them: a buffer that is taken twice in a step would be waited for."""
    from gpu_worker.sampling.triton_sampler import TritonSampler

    device, num_sent = torch.device(triton_device), []
    packer = InputPacker(device, PinnedBuffers(device, streams_of(device).compute))
    send = packer.send

    def counted(arrays: Sequence[NDArray[np.generic]]) -> list[Tensor]:
        num_sent.append(len(arrays))
        return send(arrays)

    monkeypatch.setattr(packer, "send", counted)
    params = [
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(
            temperature=0.9,
            presence_penalty=1.0,
            repetition_penalty=1.2,
            logit_bias=((3, 2.0), (7, -1.0)),
            allowed_token_ids=tuple(range(0, 300, 2)),
            bad_words=((4,),),
        ),
    ]
    rows = make_history(params, 300)
    logits = make_logits(2, 300).to(device)
    sampler, (_, theirs) = TritonSampler(device=device), make_samplers(300, triton_device)
    sampler.packer = packer
    assert_same(sampler(logits, rows), theirs(logits, rows))
    assert len(num_sent) < NUM_BUFFERS


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
def test_the_same_set_is_kept(triton_device: str, filters: dict[str, float], scale: float) -> None:
    """One row over many positions: a token that one keeps and the other drops would be drawn."""
    params = [SamplingParams(temperature=1.0, seed=7, **filters)] * 40  # type: ignore[arg-type]
    rows = make_rows(params, token_index=range(40), position=range(1, 41))
    ours, theirs = make_samplers(700, triton_device)
    logits = make_logits(1, 700, scale=scale).expand(40, -1).to(triton_device)
    assert_same(ours(logits, rows), theirs(logits, rows))


@pytest.mark.parametrize("edge", [{"top_k": 2}, {"top_p": 0.6}])
def test_ties_at_an_edge_are_kept(triton_device: str, edge: dict[str, float]) -> None:
    row = torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0], device=triton_device)
    ours, _ = make_samplers(5, triton_device)
    params = [SamplingParams(temperature=1.0, seed=i, **edge) for i in range(80)]  # type: ignore[arg-type]
    drawn = ours(row.expand(80, -1), make_rows(params, token_index=range(80)))
    assert set(drawn.token_ids.tolist()) == {0, 1, 2, 3}


def test_the_race_has_the_documented_bits(triton_device: str) -> None:
    """Of equal weights the least exponential wins, which the hash alone decides."""
    count = 60
    rows = make_rows(
        [SamplingParams(temperature=1.0, seed=2**64 - 1 - i) for i in range(count)],
        token_index=range(count),
        branch=range(count),
        position=range(1, count + 1),
    )
    ours, theirs = make_samplers(5003, triton_device)
    flat = torch.zeros(count, 5003, device=triton_device)
    assert ours(flat, rows).token_ids.tolist() == theirs(flat, rows).token_ids.tolist()


def test_rows_may_share_logits_of_16_bits(triton_device: str) -> None:
    params = [
        SamplingParams(
            temperature=1.0, top_k=20, num_logprobs=1, seed=i, logit_bias=((3, 2.0),) * i
        )
        for i in (0, 1, 0, 1, 0, 0)
    ]
    rows = make_rows(params, token_index=[0] * 6, branch=range(6), vocab_size=1000)
    ours, theirs = make_samplers(1000, triton_device)
    logits, of_row = make_logits(2, 1000).bfloat16(), np.array([1, 1, 0, 1, 0, 0])
    logits = logits.to(triton_device)
    assert_same(ours(logits, rows, of_row), theirs(logits, rows, of_row))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(triton_device: str, value: float) -> None:
    params = [
        SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=penalty)
        for penalty in (1.0, 1.0, 1.5, 1.5)
    ]
    rows = make_history(params, 100)
    ours, theirs = make_samplers(100, triton_device)
    logits = make_logits(4, 100).to(triton_device)
    logits[1, 5] = logits[2, 99] = value
    samples = ours(logits, rows)
    assert samples.failed == dict.fromkeys((1, 2), "logits are not finite")
    assert_same(samples, theirs(logits, rows))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # which the interpreter makes errors of
def test_a_row_whose_weights_overflow_ends(triton_device: str) -> None:
    params = [SamplingParams(temperature=t, top_p=0.5, seed=3) for t in (1.0, 1e-3)]
    ours, theirs = make_samplers(100, triton_device)
    logits = make_logits(2, 100).to(triton_device)
    logits[1] = 3e38  # finite, but not over such a temperature
    rows = make_rows(params, token_index=[0, 1])
    token_ids = ours(logits, rows).token_ids
    assert token_ids[0] == theirs(logits, rows).token_ids[0]
    assert 0 <= token_ids[1] < 100


def test_a_row_without_any_token_left_fails_alone(triton_device: str) -> None:
    rows = make_rows([SamplingParams()] * 2, token_index=[0, 1], suppressed={0: tuple(range(5))})
    ours, _ = make_samplers(5, triton_device)
    assert ours(make_logits(2, 5).to(triton_device), rows).failed == {
        0: "every token is suppressed"
    }


def test_logprobs_of_given_tokens_are_torchs(triton_device: str) -> None:
    ours, theirs = make_samplers(300, triton_device)
    logits, targets = make_logits(3, 300).to(triton_device), np.array([0, 7, 299], dtype=np.int32)
    counts = np.array([0, 2, 5])
    for mine, other in zip(
        ours.logprobs(logits, targets, counts),
        theirs.logprobs(logits, targets, counts),
        strict=True,
    ):
        assert mine.top_token_ids == other.top_token_ids
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-5)


def make(backend: str, device: str, *, rank: int = 0, cpu_backend: str = "auto") -> Sampler:
    config = DeviceConfig(sampling_backend=backend, cpu_backend=cpu_backend, num_threads=1)
    return make_sampler(
        config,
        vocab_size=100,
        placement=make_placement(device),
        program=None,
        group=ParallelGroup(rank, rank + 1),
    )


def test_the_sampler_is_the_one_asked_for(triton_device: str) -> None:
    triton_sampler, reference = make_samplers(100, triton_device)
    assert type(make("torch", triton_device)) is type(reference)
    assert type(make("triton", triton_device)) is type(triton_sampler)
    assert type(make("triton", triton_device, rank=1)) is NoSampler
    if triton_device == "cpu":
        assert type(make("auto", "cpu")) is type(make("native", "cpu")) is CpuSampler
        assert type(make("auto", "cpu", cpu_backend="torch")) is TorchSampler


def test_samplers_that_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'fast'; use one of auto, native, triton, torch"):
        DeviceConfig(sampling_backend="fast")
    with pytest.raises(ValueError, match="'native', which draws on a CPU only; use 'auto'"):
        make("native", "meta")
    monkeypatch.setattr(triton, "is_installed", lambda: False)
    with pytest.raises(ValueError, match=r"not installed; install signalbox-serving\[gpu\]"):
        make("triton", "cpu")


def test_auto_keeps_triton_where_it_draws_the_same(
    triton_device: str, caplog: pytest.LogCaptureFixture
) -> None:
    triton_sampler, reference = make_samplers(200, triton_device)
    sampler = sampler_factory._tried_triton_sampler(
        reference, vocab_size=200, placement=make_placement(triton_device)
    )
    assert type(sampler) is type(triton_sampler)
    assert not caplog.text


def test_auto_draws_by_torch_where_triton_draws_other_tokens(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gpu_worker.sampling import triton_sampler

    def likeliest(logits: Tensor, columns: object, **_: object) -> tuple[Tensor, Tensor]:
        best = logits.float().argmax(dim=-1).int()
        return best, torch.zeros_like(best, dtype=torch.uint8)

    monkeypatch.setattr(triton_sampler, "draw_tokens", likeliest)
    _, reference = make_samplers(200, triton_device)
    sampler = sampler_factory._tried_triton_sampler(
        reference, vocab_size=200, placement=make_placement(triton_device)
    )
    assert sampler is reference
    assert "trial draws are other tokens; torch draws instead, slower" in caplog.text
