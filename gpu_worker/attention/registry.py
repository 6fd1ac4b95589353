"""Attention backends by name; open to backends outside the tree."""

from collections.abc import Callable

from gpu_worker.attention.backend import AttentionBackend, AttentionShape
from gpu_worker.attention.torch_backend import TorchAttention

BackendFactory = Callable[[AttentionShape], AttentionBackend]

_backends: dict[str, BackendFactory] = {"torch": TorchAttention}


def register_attention_backend(name: str, factory: BackendFactory) -> None:
    """Adds a backend, or replaces the one of the same name."""
    _backends[name] = factory


def attention_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """Makes the backend called `name`."""
    if name not in _backends:
        raise ValueError(f"attention_backend is {name!r}; there are {', '.join(sorted(_backends))}")
    return _backends[name](shape)
