"""Attention backends by name; open to backends outside the tree."""

import logging
from collections.abc import Callable

import torch

from gpu_worker.attention.backend import AttentionBackend, AttentionShape
from gpu_worker.attention.torch_backend import TorchAttention
from gpu_worker.attention.trial import fault_of
from signalbox_kernels import triton

logger = logging.getLogger(__name__)

BackendFactory = Callable[[AttentionShape], AttentionBackend]

AUTO = "auto"


def _triton_attention(shape: AttentionShape) -> AttentionBackend:
    """Makes Triton's; on CUDA the step's other ops become Triton's too."""
    if not triton.is_installed():
        raise ValueError(
            "attention_backend is 'triton', but Triton is not installed; "
            "install signalbox-serving[gpu], or use 'torch'"
        )
    from gpu_worker.attention.triton_backend import TritonAttention

    if shape.device.type == "cuda":
        triton.register_ops("cuda")
    return TritonAttention(shape)


_backends: dict[str, BackendFactory] = {"torch": TorchAttention, "triton": _triton_attention}
_soft_capping = {"torch", "triton"}


def register_attention_backend(
    name: str, factory: BackendFactory, *, caps_scores: bool = False
) -> None:
    """Adds a backend, or replaces the one of the same name.

    Args:
        caps_scores: whether it heeds AttentionShape.soft_cap; it gets no such shape otherwise.
    """
    _backends[name] = factory
    (_soft_capping.add if caps_scores else _soft_capping.discard)(name)


def attention_backends() -> tuple[str, ...]:
    """Returns the names of all backends."""
    return tuple(sorted(_backends))


def automatic_backend(device: torch.device, *, head_size: int | None = None) -> str:
    """Returns the name of the fastest backend for heads of a size, by default of a usual one."""
    is_usual = head_size is None or head_size <= triton.MAX_HEAD_SIZE
    return "triton" if device.type == "cuda" and triton.is_installed() and is_usual else "torch"


def attention_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """Makes the backend called `name`; "auto" is the fastest that supports the shape, and works."""
    if name == AUTO:
        name = _tried(automatic_backend(shape.device, head_size=shape.head_size), shape)
        logger.info("attention_backend auto is %s", name)
    if name not in _backends:
        raise ValueError(
            f"attention_backend is {name!r}; there are {', '.join([AUTO, *sorted(_backends)])}"
        )
    if shape.soft_cap is not None and name not in _soft_capping:
        raise ValueError(
            f"attention_backend {name!r} caps no scores, as this model needs; "
            f"use {', '.join(sorted(_soft_capping))}"
        )
    return _backends[name](shape)


def _tried(name: str, shape: AttentionShape) -> str:
    """Returns `name`, or "torch" if that backend does not do here what torch does."""
    if name == "torch":
        return name
    fault = fault_of(_backends[name], shape)
    if fault is None:
        return name
    logger.warning(
        "attention_backend %r does not work on this %s: %s; torch serves instead, slower",
        name,
        shape.device,
        fault,
    )
    triton.unregister_ops(shape.device.type)
    return "torch"
