"""Attention backends by name; open to backends outside the tree."""

from collections.abc import Callable

from gpu_worker.attention.backend import AttentionBackend, AttentionShape
from gpu_worker.attention.torch_backend import TorchAttention

BackendFactory = Callable[[AttentionShape], AttentionBackend]

_backends: dict[str, BackendFactory] = {"torch": TorchAttention}
_soft_capping = {"torch"}


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


def attention_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """Makes the backend called `name`."""
    if name not in _backends:
        raise ValueError(f"attention_backend is {name!r}; there are {', '.join(sorted(_backends))}")
    if shape.soft_cap is not None and name not in _soft_capping:
        raise ValueError(
            f"attention_backend {name!r} caps no scores, as this model needs; "
            f"use {', '.join(sorted(_soft_capping))}"
        )
    return _backends[name](shape)
