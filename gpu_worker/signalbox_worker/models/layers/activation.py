"""Activations, by the names that config.json gives them."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from signalbox_worker.config import ModelError

Activation = Callable[[Tensor], Tensor]

_gelu_tanh = partial(F.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


def activation(name: object, architecture: str) -> Activation:
    """Returns the activation called `name`."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ModelError(
            f"{architecture} with activation {str(name)[:40]!r} is not supported; "
            f"use {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """GeGLU's product (Shazeer, 2020), by the tanh approximation of GELU.

    Args:
        gate_up: [num_tokens, 2 * size]: gate, then up.

    Returns:
        [num_tokens, size].
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return _gelu_tanh(gate).mul_(up)
