"""Which sampler draws: C++ on a CPU, Triton on CUDA, PyTorch anywhere.

All give the same tokens. Before "auto" trusts Triton on the device at hand, both draw the same rows
there in another process, as attention backends are tried (`models/attention/selection.py`).
"""

import logging

import numpy as np
import torch
from torch import Tensor

from signalbox_kernels import triton
from signalbox_kernels.filters import EXAMPLES
from signalbox_kernels.native import NativeUnavailable
from signalbox_worker.batch.arrays import Int32Array, Int64Array
from signalbox_worker.batch.batch import BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import (
    Biases,
    Penalties,
    SampleRows,
    TokenRuns,
    neutral_filters,
)
from signalbox_worker.config import DeviceConfig
from signalbox_worker.device.inspection import BackendInUse
from signalbox_worker.device.trials.kept_verdicts import verdicts_of
from signalbox_worker.device.trials.trial import Trial, Verdict
from signalbox_worker.models.layers import ParallelGroup, Placement
from signalbox_worker.sampling.native_sampler import CpuSampler
from signalbox_worker.sampling.sampler import NoSampler, Sampler
from signalbox_worker.sampling.torch_sampler import TorchSampler

logger = logging.getLogger(__name__)


TensorSampler = Sampler[Tensor]


class NativeTensorSampler:
    """The native sampler for tensors on a CPU, whose memory it reads."""

    def __init__(self, native: CpuSampler) -> None:
        self._native = native

    def __call__(
        self, logits: Tensor, rows: SampleRows, logits_row: Int64Array | None = None
    ) -> BatchOutput:
        return self._native(logits.float().contiguous().numpy(), rows, logits_row)

    def logprobs(
        self, logits: Tensor, targets: Int32Array, num_logprobs: Int64Array
    ) -> list[Logprobs]:
        return self._native.logprobs(logits.float().contiguous().numpy(), targets, num_logprobs)


def make_sampler(
    config: DeviceConfig,
    *,
    vocab_size: int,
    placement: Placement,
    group: ParallelGroup,
) -> TensorSampler:
    """Makes the sampler that `config` asks for. Raises ValueError where it cannot run."""
    if not group.is_first:
        return NoSampler()
    device, wanted = placement.device, config.sampling_backend
    if wanted == "auto":
        return _automatic_sampler(config, vocab_size, placement)
    if wanted == "native":
        _require(device.type == "cpu", "'native', which draws on a CPU only; use 'auto'")
        return _native_sampler(config)
    if wanted == "triton":
        return _triton_sampler(device)
    return TorchSampler(vocab_size=vocab_size, device=device)


def describe_sampler(
    sampler: TensorSampler, config: DeviceConfig, device: torch.device
) -> BackendInUse:
    """Names the sampler that `make_sampler` has made."""
    if isinstance(sampler, TorchSampler):
        is_last_resort = config.sampling_backend == "auto" and device.type == "cuda"
        return BackendInUse("sampling", "torch", is_last_resort)
    names = {NativeTensorSampler: "native", NoSampler: "none"}
    return BackendInUse("sampling", names.get(type(sampler), "triton"))


def _automatic_sampler(
    config: DeviceConfig, vocab_size: int, placement: Placement
) -> TensorSampler:
    device = placement.device
    reference = TorchSampler(vocab_size=vocab_size, device=device)
    if device.type == "cpu" and config.cpu_backend != "torch":
        try:
            return _native_sampler(config)
        except NativeUnavailable:  # which loading the model has warned of
            return reference
    if device.type == "cuda" and triton.is_installed():
        return _tried_triton_sampler(reference, vocab_size=vocab_size, placement=placement)
    return reference


def _tried_triton_sampler(
    reference: TensorSampler, *, vocab_size: int, placement: Placement
) -> TensorSampler:
    """Returns Triton's, or `reference` if Triton does not draw here what that does."""
    trial = Trial(
        name="sampling_backend 'triton'",
        function=f"{__name__}:{try_triton.__name__}",
        arguments={
            "vocab_size": vocab_size,
            "dtype": str(placement.dtype).removeprefix("torch."),
        },
    )
    (verdict,) = verdicts_of([trial], placement.device)
    if verdict.fault is None:
        return _triton_sampler(placement.device)
    logger.warning(
        "sampling_backend 'triton' does not work on this %s: %s; torch samples, more slowly",
        placement.device,
        verdict.fault,
    )
    return reference


def _native_sampler(config: DeviceConfig) -> TensorSampler:
    num_threads = config.num_threads or torch.get_num_threads()
    return NativeTensorSampler(CpuSampler(program=None, num_threads=num_threads))


def _triton_sampler(device: torch.device) -> TensorSampler:
    _require(
        triton.is_installed(),
        "'triton', but Triton is not installed; install signalbox-serving[gpu], or use 'auto'",
    )
    from signalbox_kernels.triton.launch import is_interpreted
    from signalbox_worker.sampling.triton_sampler import TritonSampler

    _require(
        device.type == "cuda" or is_interpreted(),
        f"'triton', which cannot run on {device.type}; use 'auto', or set TRITON_INTERPRET=1 to "
        "interpret its kernels, slowly",
    )
    return TritonSampler(device=device)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(f"sampling_backend is {problem}")


def try_triton(device: torch.device, *, vocab_size: int, dtype: str) -> Verdict:
    """Compares Triton's draws with PyTorch's on a device; called in the process of trials.

    They draw twice, from other logits with other seeds: what the first step has left behind may be
    what the next one fails by.
    """
    samplers = (_triton_sampler(device), TorchSampler(vocab_size=vocab_size, device=device))
    for seed in range(2):
        rows = _trial_rows(vocab_size, first_seed=64 * seed)
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(len(rows), vocab_size, generator=generator).mul_(3.0)
        logits = logits.to(device, getattr(torch, dtype))
        drawn, expected = (sampler(logits, rows) for sampler in samplers)
        differing = np.flatnonzero(drawn.token_ids != expected.token_ids)
        if drawn.failed != expected.failed or len(differing):
            return Verdict(fault=f"{len(differing)} of {len(rows)} trial draws are other tokens")
    return Verdict()


def _trial_rows(vocab_size: int, *, first_seed: int) -> SampleRows:
    """Returns rows without a filter, with each alone, with all, and with every edit but a mask."""
    num_filters = len(EXAMPLES)
    num_rows = num_filters + 4
    index = np.arange(num_rows)
    filters = neutral_filters(num_rows)
    for row, (column, value) in enumerate(zip(filters, EXAMPLES, strict=True), start=2):
        column[[row, num_filters + 2]] = value
    filters.top_k[:] = np.minimum(filters.top_k, vocab_size)
    first = np.zeros(num_rows, np.int32)
    first[-1] = 1  # runs of one token, of the last row
    temperature, repetition = np.ones((2, num_rows), np.float32)
    presence, frequency = np.zeros((2, num_rows), np.float32)
    temperature[:2] = (0.0, 0.8)
    presence[-1], frequency[-1], repetition[-1] = 0.5, 0.25, 1.25
    tokens = (np.arange(64, dtype=np.int32) % min(vocab_size, 40))[None]
    return SampleRows(
        seq_ids=index,
        token_index=index,
        branch=np.zeros(num_rows, np.int64),
        position=np.full(num_rows, tokens.shape[1], np.int64),
        temperature=temperature,
        filters=filters,
        seed=np.arange(first_seed, first_seed + num_rows, dtype=np.uint64),
        num_logprobs=np.full(num_rows, -1, np.int64),
        suppressed=TokenRuns(first, np.array([vocab_size - 1], np.int32)),
        biases=Biases(TokenRuns(first, np.zeros(1, np.int32)), np.ones(1, np.float32)),
        penalties=Penalties(
            presence=presence,
            frequency=frequency,
            repetition=repetition,
            num_prompt=np.full(num_rows, 30, np.int64),
            owners=np.zeros(num_rows, np.int64),
            tokens=tokens,
        ),
    )
