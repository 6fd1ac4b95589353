"""Triton's sampler against PyTorch's: the same tokens from the same logits, interpreted."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_contract.sampling_params import SamplingParams
from signalbox_kernels import triton
from signalbox_worker.batch.input_transfer import NUM_BUFFERS, InputPacker, PinnedBuffers
from signalbox_worker.config import DeviceConfig
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.models.layers import ParallelGroup, Placement
from signalbox_worker.sampling import sampler_factory
from signalbox_worker.sampling.sampler import NoSampler, Sampler
from signalbox_worker.sampling.sampler_factory import NativeTensorSampler, make_sampler
from signalbox_worker.sampling.torch_sampler import TorchSampler
from tests.gpu_worker.device.trials.trials_here import run_here
from tests.gpu_worker.generation import make_rows
from tests.gpu_worker.sampling.draws import assert_same, make_history, make_logits

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are made, whatever an earlier run has kept."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))


def make_samplers(vocab_size: int, device: str) -> tuple[Sampler, Sampler]:
    """Returns Triton's sampler and PyTorch's."""
    from signalbox_worker.sampling.triton_sampler import TritonSampler

    where = torch.device(device)
    return TritonSampler(device=where), TorchSampler(vocab_size=vocab_size, device=where)


def make_placement(device: str = "cpu") -> Placement:
    return Placement(torch.device(device), torch.float32)


def test_columns_may_go_in_packed_copies(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in few of them: a buffer that is taken twice in a step would be waited for."""
    from signalbox_worker.sampling.triton_sampler import TritonSampler

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


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8])
def test_columns_are_aligned_whatever_the_number_of_rows(num_rows: int) -> None:
    """Triton compiles a kernel again for a pointer that is not divisible by 16."""
    from signalbox_worker.sampling.triton_sampler import TritonSampler

    rows = make_rows([SamplingParams(seed=1)] * num_rows, token_index=[0] * num_rows)
    sampler = TritonSampler(device=torch.device("cpu"))
    columns = sampler._columns(rows, np.arange(num_rows) + 7)
    assert [column.storage_offset() * column.itemsize % 16 for column in columns.all] == [0] * 8
    assert columns.logits_row.tolist() == list(range(7, 7 + num_rows))
    assert [len(column) for column in columns.all] == [num_rows] * 8


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


def make(backend: str, device: str, *, rank: int = 0, cpu_backend: str = "auto") -> Sampler:
    config = DeviceConfig(sampling_backend=backend, cpu_backend=cpu_backend, num_threads=1)
    return make_sampler(
        config,
        vocab_size=100,
        placement=make_placement(device),
        group=ParallelGroup(rank, rank + 1),
    )


def test_the_sampler_is_the_one_asked_for(triton_device: str) -> None:
    triton_sampler, reference = make_samplers(100, triton_device)
    assert type(make("torch", triton_device)) is type(reference)
    assert type(make("triton", triton_device)) is type(triton_sampler)
    assert type(make("triton", triton_device, rank=1)) is NoSampler
    if triton_device == "cpu":
        assert type(make("auto", "cpu")) is type(make("native", "cpu")) is NativeTensorSampler
        assert type(make("auto", "cpu", cpu_backend="torch")) is TorchSampler


def test_a_sampler_is_named_and_pytorchs_is_the_last_resort_of_auto_on_a_gpu(
    triton_device: str,
) -> None:
    triton_sampler, reference = make_samplers(100, triton_device)
    cuda = torch.device("cuda")
    auto, named = DeviceConfig(), DeviceConfig(sampling_backend="torch")
    for sampler, config, expected in (
        (triton_sampler, auto, ("sampling", "triton", False)),
        (reference, auto, ("sampling", "torch", True)),
        (reference, named, ("sampling", "torch", False)),
        (NoSampler(), auto, ("sampling", "none", False)),
    ):
        assert sampler_factory.describe_sampler(sampler, config, cuda) == expected


def test_samplers_that_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'auto', 'native', 'triton' or 'torch'"):
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
    from signalbox_worker.sampling import triton_sampler

    def likeliest(logits: Tensor, columns: object, **_: object) -> tuple[Tensor, Tensor]:
        best = logits.float().argmax(dim=-1).int()
        return best, torch.zeros_like(best, dtype=torch.uint8)

    monkeypatch.setattr(triton_sampler, "draw_tokens", likeliest)
    monkeypatch.setattr(sampler_factory, "verdicts_of", run_here)
    _, reference = make_samplers(200, triton_device)
    sampler = sampler_factory._tried_triton_sampler(
        reference, vocab_size=200, placement=make_placement(triton_device)
    )
    assert sampler is reference
    assert "trial draws are other tokens; torch samples, more slowly" in caplog.text
