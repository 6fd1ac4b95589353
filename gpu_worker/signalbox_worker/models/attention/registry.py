"""Attention backends by name; open to backends outside the tree.

A backend outside is named by an import path ("package.module:Factory"), or by an entry point of the
group "signalbox.attention_backends" in an installed distribution, as
docs/how_to/add_an_attention_backend.md shows.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import entry_points

import torch

from signalbox_kernels import triton
from signalbox_worker.config import AUTO_BLOCK_SIZE, USUAL_BLOCK_SIZE
from signalbox_worker.models.attention.backend import AttentionBackend, AttentionShape
from signalbox_worker.models.attention.flash_backend import FlashAttention
from signalbox_worker.models.attention.flash_kernels import (
    FLASH_KERNELS,
    PACKAGED_KERNELS,
    FlashKernel,
)
from signalbox_worker.models.attention.torch_backend import TorchAttention
from signalbox_worker.models.attention.whole_sequences import WholeSequenceAttention

BackendFactory = Callable[[AttentionShape], AttentionBackend]

AUTO = "auto"
GROUP = "signalbox.attention_backends"
FLASH = "flash_attn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A backend and what it supports; a factory may state that in attributes of the same names."""

    factory: BackendFactory
    caps_scores: bool = False
    """True if the backend applies AttentionShape.soft_cap; otherwise no shape has one."""
    takes_fp8: bool = False
    """True if the backend holds K and V in AttentionShape.kv_dtype; otherwise no shape has
    fp8_scales."""
    takes_int8: bool = False
    """True if the backend holds them in AttentionShape.caches; otherwise no shape has
    has_int8_cache."""
    takes_sinks: bool = False
    """True if the backend's plans are SinkAttentionPlans; otherwise no shape has_sinks."""
    sees_both_ways: bool = False
    """True if the backend obeys AttentionShape.is_bidirectional; otherwise no shape is so."""
    block_sizes: tuple[int, ...] = ()
    """Supported numbers of tokens in a block, the preferred first; empty if any is supported."""

    @classmethod
    def of(cls, factory: BackendFactory) -> "Registered":
        return cls(
            factory=factory,
            caps_scores=getattr(factory, "caps_scores", False),
            takes_fp8=getattr(factory, "takes_fp8", False),
            takes_int8=getattr(factory, "takes_int8", False),
            takes_sinks=getattr(factory, "takes_sinks", False),
            sees_both_ways=getattr(factory, "sees_both_ways", False),
            block_sizes=tuple(getattr(factory, "block_sizes", ())),
        )


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    """A backend, and the size of blocks that it was made for."""

    name: str
    backend: AttentionBackend
    block_size: int
    is_last_resort: bool = False
    """True if it leaves a GPU to PyTorch because no other takes the model."""


def _torch_attention(shape: AttentionShape) -> AttentionBackend:
    return WholeSequenceAttention(shape) if shape.is_bidirectional else TorchAttention(shape)


def _triton_attention(name: str, *, is_plain: bool, dependent: bool) -> BackendFactory:
    """Makes Triton's backend; on CUDA all other ops of a step become Triton's, too."""

    def make(shape: AttentionShape) -> AttentionBackend:
        if not triton.is_installed():
            raise ValueError(
                f"attention_backend is {name!r}, but Triton is not installed; "
                "install signalbox-serving[gpu], or use 'torch'"
            )
        from signalbox_worker.models.attention.triton_backend import TritonAttention

        _register_ops(shape.device)
        return TritonAttention(shape, is_plain=is_plain, dependent=dependent)

    return make


def _flash_attention(kernel: FlashKernel) -> BackendFactory:
    def make(shape: AttentionShape) -> AttentionBackend:
        backend = FlashAttention(shape, kernel)
        _register_ops(shape.device)
        return backend

    return make


def _register_ops(device: torch.device) -> None:
    if device.type == "cuda" and triton.is_installed():
        triton.register_ops("cuda")


TRITON_PDL = "triton_pdl"
"""Triton's with kernels that are launched while the one before ends."""
TRITON_PLAIN = "triton_plain"
"""Triton's with a launch for each thing: nothing is fused, and no program joins others' shares."""
_TRITON = {
    "triton": {"is_plain": False, "dependent": False},
    TRITON_PDL: {"is_plain": False, "dependent": True},
    TRITON_PLAIN: {"is_plain": True, "dependent": False},
}
_backends: dict[str, Registered] = (
    {
        "torch": Registered(
            factory=_torch_attention,
            caps_scores=True,
            takes_fp8=True,
            takes_int8=True,
            takes_sinks=True,
            sees_both_ways=True,
        ),
    }
    | {
        name: Registered(
            factory=_triton_attention(name, **switches),
            caps_scores=True,
            takes_fp8=True,
            takes_int8=True,
            sees_both_ways=True,
        )
        for name, switches in _TRITON.items()
    }
    | {
        kernel.name: Registered(
            factory=_flash_attention(kernel),
            caps_scores=kernel.caps_scores,
            block_sizes=kernel.block_sizes,
        )
        for kernel in PACKAGED_KERNELS
    }
)


def register_attention_backend(
    name: str,
    factory: BackendFactory,
    *,
    caps_scores: bool | None = None,
    block_sizes: tuple[int, ...] | None = None,
) -> None:
    """Adds a backend, or replaces the one of the same name; `Registered` explains the rest."""
    entry = Registered.of(factory)
    if caps_scores is not None:
        entry = replace(entry, caps_scores=caps_scores)
    if block_sizes is not None:
        entry = replace(entry, block_sizes=block_sizes)
    _backends[name] = entry


def attention_backends() -> tuple[str, ...]:
    """Returns the names of all backends, installed or not."""
    outside = {entry.name for entry in entry_points(group=GROUP)}
    return tuple(sorted({*_backends, *outside, FLASH}))


def installed_backends() -> tuple[str, ...]:
    """Returns the names of the backends whose packages are installed."""
    missing = missing_backends()
    if missing.issuperset(kernel.name for kernel in FLASH_KERNELS):
        missing.add(FLASH)
    return tuple(name for name in attention_backends() if name not in missing)


def missing_backends() -> set[str]:
    """Returns the names of backends in the tree whose packages are not installed."""
    missing = {kernel.name for kernel in PACKAGED_KERNELS if not kernel.is_installed()}
    return missing if triton.is_installed() else missing | _TRITON.keys()


def make_attention_backend(name: str, shape: AttentionShape) -> ChosenBackend:
    """Makes the backend of that very name.

    Args:
        shape: a block_size of AUTO_BLOCK_SIZE leaves that to the backend.

    Raises ValueError with what is wrong and the remedy.
    """
    entry = _registered(name)
    if shape.soft_cap is not None and not entry.caps_scores:
        able = sorted(each for each, other in _backends.items() if other.caps_scores)
        raise ValueError(
            f"attention_backend {name!r} caps no scores, as this model needs; use {', '.join(able)}"
        )
    if shape.fp8_scales is not None and not entry.takes_fp8:
        raise _refused_type(name, "FP8", {k for k, each in _backends.items() if each.takes_fp8})
    if shape.has_int8_cache and not entry.takes_int8:
        raise _refused_type(name, "int8", {k for k, each in _backends.items() if each.takes_int8})
    if shape.has_sinks and not entry.takes_sinks:
        able = sorted(each for each, other in _backends.items() if other.takes_sinks)
        raise ValueError(
            f"attention_backend {name!r} has no sinks, which this model needs; use "
            f"{', '.join(able)}"
        )
    if shape.is_bidirectional and not entry.sees_both_ways:
        able = sorted(each for each, other in _backends.items() if other.sees_both_ways)
        raise ValueError(
            f"attention_backend {name!r} lets no token see those behind it, as this model needs; "
            f"use {', '.join(able)}"
        )
    size = shape.block_size
    if size == AUTO_BLOCK_SIZE:
        size = (*entry.block_sizes, USUAL_BLOCK_SIZE)[0]
    if entry.block_sizes and size not in entry.block_sizes:
        raise ValueError(
            f"attention_backend {name!r} takes blocks of {', '.join(map(str, entry.block_sizes))} "
            f"tokens, not {size}; leave block_size out"
        )
    return ChosenBackend(name, entry.factory(replace(shape, block_size=size)), size)


def _refused_type(name: str, kv_dtype: str, able: set[str]) -> ValueError:
    return ValueError(
        f"attention_backend {name!r} holds no K and V in {kv_dtype}; use "
        f"{', '.join(sorted(able))}, or kv_cache_dtype 'auto'"
    )


def _registered(name: str) -> Registered:
    if name in _backends:
        return _backends[name]
    module, is_path, attribute = name.partition(":")
    found = tuple(entry_points(group=GROUP, name=name))
    if not is_path and not found:
        known = ", ".join((AUTO, *attention_backends()))
        raise ValueError(f"attention_backend is {name!r}; there are {known}, or module:factory")
    try:
        loaded = found[0].load() if found else getattr(importlib.import_module(module), attribute)
    except Exception as error:  # foreign code may raise anything
        raise ValueError(
            f"attention_backend {name!r} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    return Registered.of(loaded)
