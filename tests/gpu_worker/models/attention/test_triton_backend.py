"""The worker with Triton's kernels says what it says with PyTorch's, under the interpreter."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from signalbox_kernels import triton
from signalbox_kernels.torch import registry as ops_registry
from signalbox_worker.models.attention import attention_backend, automatic_backend, selection
from signalbox_worker.models.attention.backend_check import fault_of
from signalbox_worker.models.attention.torch_backend import TorchAttention
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.models.attention.device_attention import make_shape
from tests.gpu_worker.models.attention.faulty_backends import ForgetfulAttention
from tests.gpu_worker.tiny_models import make_model

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are made, whatever an earlier run has kept."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))


def load(path: Path, backend: str, *, device: str) -> LocalRunner:
    runner = make_runner(path, attention_backend=backend, device=device, num_gpu_blocks=12)
    runner.pools.gpu_pool.fill_(0xFF)  # a NaN wherever nobody has written
    return runner


# With norms of queries and keys; with windows, caps and offsets.
@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_tokens_equal_those_of_the_torch_backend(
    triton_device: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from signalbox_worker.models.attention import triton_backend

    def never(*_: object) -> None:
        raise AssertionError("these models rotate on the way into the cache")

    monkeypatch.setattr(triton_backend, "reshape_and_cache", never)
    make_model(tmp_path, family)
    prompts = make_prompts(3, 26)
    triton_runner = load(tmp_path, "triton", device=triton_device)
    mixed = Driver(runner=triton_runner, chunk=20).generate(prompts, num_tokens=2)

    triton.unregister_ops(triton_device)
    torch_runner = load(tmp_path, "torch", device=triton_device)
    torch_runner.pools.gpu_pool.zero_()
    assert mixed == Driver(runner=torch_runner, chunk=20).generate(prompts, num_tokens=2)


def test_auto_is_triton_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "generation_of", lambda device: 8)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(triton, "is_installed", lambda: True)
    assert automatic_backend(cuda) == "triton"
    assert automatic_backend(cpu) == "torch"
    monkeypatch.setattr(triton, "is_installed", lambda: False)
    assert automatic_backend(cuda) == "torch"


@pytest.mark.parametrize("name", ["triton_pdl", "triton_plain"])
def test_plain_triton_fuses_nothing(
    triton_device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from signalbox_kernels.triton.attention import paged_attention, paged_kernel
    from signalbox_kernels.triton.attention.work import Sharing
    from signalbox_worker.models.attention import triton_backend

    launched = set[str]()

    def count(module: Any, launcher: str) -> None:
        launch = getattr(module, launcher)

        def counted(*args: Any, **kwargs: Any) -> None:
            launched.add(launcher)
            launch(*args, **kwargs)

        monkeypatch.setattr(module, launcher, counted)

    count(paged_kernel, "join_shares")
    count(triton_backend, "rotary_and_cache")
    monkeypatch.setattr(paged_attention, "_choose_sharing", lambda *_: Sharing(9, least_keys=32))
    shape = make_shape(device=triton_device)
    assert fault_of(lambda each: attention_backend(name, each), shape) is None
    assert launched == {"join_shares" if name == "triton_plain" else "rotary_and_cache"}


def test_triton_passes_the_trial_both_ways(triton_device: str) -> None:
    shape = make_shape(device=triton_device, is_bidirectional=True, sliding_windows=(None, 20))
    assert fault_of(lambda each: attention_backend("triton", each), shape) is None


def test_dependent_launches_are_refused_where_a_gpu_has_none(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from signalbox_worker.models.attention import triton_backend

    monkeypatch.setattr(triton_backend, "compute_capability", lambda device: (8, 9))
    with pytest.raises(ValueError, match=r"'triton_pdl' takes a GPU of compute capability 9.0"):
        attention_backend("triton_pdl", make_shape(device=triton_device))
    attention_backend("triton", make_shape(device=triton_device))


def test_triton_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "is_installed", lambda: False)
    with pytest.raises(ValueError, match=r"not installed; install signalbox-serving\[gpu\]"):
        attention_backend("triton", make_shape())


def test_triton_refuses_a_cpu_and_large_heads(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from signalbox_worker.models.attention import triton_backend

    with pytest.raises(ValueError, match="heads of up to 256 elements, not 512; use 'torch'"):
        attention_backend("triton", make_shape(device=triton_device, head_size=512))
    with pytest.raises(ValueError, match="128 heads on one of K and V, not 384 on 2; use 'torch'"):
        attention_backend("triton", make_shape(device=triton_device, num_heads=384, num_kv_heads=2))
    monkeypatch.setattr(triton_backend, "is_interpreted", lambda: False)
    with pytest.raises(
        ValueError, match="cannot run on a CPU; use 'torch', or set TRITON_INTERPRET"
    ):
        attention_backend("triton", make_shape())


def test_the_rotation_of_a_trial_is_compared_with_pytorchs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with the one that is registered for the device, which layers and the backend share."""
    monkeypatch.setattr(ops_registry, "_implementations", {})
    assert fault_of(TorchAttention, make_shape()) is None
    ops_registry.register("rotary_embedding", "cpu", lambda heads, cos, signed_sin: None)
    assert "off by" in str(fault_of(TorchAttention, make_shape()))


def test_a_trial_is_repeated_on_the_same_backend() -> None:
    assert "off by" in str(fault_of(ForgetfulAttention, make_shape()))


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        ("BrokenAttention", "off by nan"),
        ("MisrotatingAttention", "off by"),
        ("fail", "no kernel image is available\nfor this device"),
    ],
)
def test_auto_leaves_no_gpu_to_torch_because_a_backend_does_not_work(
    backend: str,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = f"tests.gpu_worker.models.attention.faulty_backends:{backend}"
    monkeypatch.setattr(selection, "candidates", lambda device: (path, "torch"))
    with pytest.raises(ValueError, match=rf"{path}' does not work here.*; 'torch' runs, several"):
        attention_backend("auto", make_shape())
    assert fault in caplog.text
    assert type(attention_backend("torch", make_shape())) is TorchAttention


def test_auto_keeps_a_backend_that_works(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selection, "candidates", lambda device: ("triton", "torch"))
    backend = attention_backend("auto", make_shape(device=triton_device))
    assert type(backend) is not TorchAttention
    assert "does not work" not in caplog.text


def test_auto_says_what_it_takes_and_why_not_another(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selection, "candidates", lambda device: ("triton", "torch"))
    with caplog.at_level(logging.INFO):
        attention_backend("auto", make_shape(device=triton_device, head_size=512))
    assert "auto is torch, in blocks of 16 tokens; attention_backend 'triton' takes" in caplog.text
    assert "heads of up to 256 elements, not 512" in caplog.text
