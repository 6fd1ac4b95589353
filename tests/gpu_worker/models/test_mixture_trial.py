"""A mixture of experts that is tried before it is trusted."""

import pytest
import torch

from signalbox_kernels import ops
from signalbox_kernels.torch import registry
from signalbox_worker.models import mixture_trial
from tests.gpu_worker.device.trials.trials_here import run_here

SIZES = {"num_experts": 8, "experts_per_token": 2, "hidden_size": 24, "expert_size": 16}


def test_kernels_that_agree_with_pytorch_are_kept(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mixture_trial, "verdicts_of", run_here)
    monkeypatch.setattr(mixture_trial, "_MANY_TOKENS", 0)  # the kernel's own tests sort as many
    device = torch.device(triton_device)
    mixture_trial.keep_if_right(device, dtype=torch.bfloat16, **SIZES)
    assert registry.has_own(ops.mix_experts.__name__, device)
    assert not caplog.text


def test_kernels_that_compute_something_else_are_left_to_pytorch(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from signalbox_kernels.triton.experts.products import grouped_product

    monkeypatch.setattr(mixture_trial, "verdicts_of", run_here)
    monkeypatch.setattr(
        "signalbox_kernels.triton.experts.mixture.grouped_product",
        lambda *args, **kwargs: grouped_product(*args, **kwargs) * 1.1,
    )
    device = torch.device(triton_device)
    mixture_trial.keep_if_right(device, dtype=torch.float32, **SIZES)
    assert not registry.has_own(ops.mix_experts.__name__, device)
    assert "the results of 1 tokens are off by" in caplog.text


def test_a_device_without_kernels_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mixture_trial, "verdicts_of")
    mixture_trial.keep_if_right(torch.device("cpu"), dtype=torch.float32, **SIZES)
