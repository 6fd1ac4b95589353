"""Functions of vectors that follow pooling, in NumPy on [num_seqs, size] float32."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.config import ModelError

Function = Callable[[FloatArray], FloatArray]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: FloatArray) -> FloatArray:
    exact: FloatArray = (0.5 * x * (1 + _erf(x * math.sqrt(0.5)))).astype(np.float32)
    return exact


def _gelu_tanh(x: FloatArray) -> FloatArray:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    approximate: FloatArray = np.float32(0.5) * x * (1 + np.tanh(inner))
    return approximate


def _sigmoid(x: FloatArray) -> FloatArray:
    half: FloatArray = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x))
    return half


def _relu(x: FloatArray) -> FloatArray:
    return np.maximum(x, np.float32(0))


def _silu(x: FloatArray) -> FloatArray:
    return x * _sigmoid(x)


def _tanh(x: FloatArray) -> FloatArray:
    return np.tanh(x)


def _identity(x: FloatArray) -> FloatArray:
    return x


_TORCH_FUNCTIONS: dict[str, Function] = {
    "GELU": _gelu,
    "Identity": _identity,
    "ReLU": _relu,
    "SiLU": _silu,
    "Sigmoid": _sigmoid,
    "Tanh": _tanh,
}
"""Functions by the names of PyTorch's modules."""
_HF_FUNCTIONS: dict[str, Function] = {
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": _relu,
    "silu": _silu,
    "swish": _silu,
    "tanh": _tanh,
}
"""Functions by the names that config.json has."""


def torch_function(path: str, owner: str) -> Function:
    """Returns the function that a class of torch.nn computes, by its path. Raises ModelError."""
    name = path.rpartition(".")[2]
    if not path.startswith("torch.nn.") or name not in _TORCH_FUNCTIONS:
        raise ModelError(
            f"{owner} has the activation function {path[:80]!r}, which is not supported; use "
            f"torch.nn's {', '.join(sorted(_TORCH_FUNCTIONS))}"
        )
    return _TORCH_FUNCTIONS[name]


def config_function(name: object, owner: str) -> Function:
    """Returns the function that config.json names. Raises ModelError."""
    if not isinstance(name, str) or name not in _HF_FUNCTIONS:
        raise ModelError(
            f"{owner} has the activation {str(name)[:40]!r}, which is not supported; use "
            f"{', '.join(sorted(_HF_FUNCTIONS))}"
        )
    return _HF_FUNCTIONS[name]


class VectorModule(Protocol):
    """A function of vectors."""

    def __call__(self, x: FloatArray) -> FloatArray:
        """[num_seqs, in] to [num_seqs, out]."""
        ...


@dataclass(frozen=True, slots=True)
class Dense:
    """activation(x @ weight.T + bias), and perhaps x beside it."""

    weight: FloatArray
    """[out, in]."""
    bias: FloatArray | None = None
    """[out]."""
    function: Function = _identity
    residual: FloatArray | None = None
    """[out, in] that x is multiplied with before it is added; None adds nothing."""

    def __call__(self, x: FloatArray) -> FloatArray:
        out = x @ self.weight.T
        if self.bias is not None:
            out += self.bias
        out = self.function(out)
        return out if self.residual is None else out + x @ self.residual.T


@dataclass(frozen=True, slots=True)
class VectorLayerNorm:
    """Layer normalisation (Ba et al., 2016)."""

    weight: FloatArray
    bias: FloatArray | None
    eps: float

    def __call__(self, x: FloatArray) -> FloatArray:
        centred = x - x.mean(axis=-1, keepdims=True, dtype=np.float64)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        normed: FloatArray = (centred / np.sqrt(variance + self.eps)).astype(np.float32)
        normed *= self.weight
        return normed if self.bias is None else normed + self.bias


@dataclass(frozen=True, slots=True)
class Normalize:
    """Divides by the Euclidean norm, as torch.nn.functional.normalize does."""

    def __call__(self, x: FloatArray) -> FloatArray:
        norms = np.sqrt(np.square(x, dtype=np.float64).sum(axis=-1, keepdims=True))
        unit: FloatArray = (x / np.maximum(norms, 1e-12)).astype(np.float32)
        return unit


@dataclass(frozen=True, slots=True)
class Truncate:
    """Keeps the first elements."""

    size: int

    def __call__(self, x: FloatArray) -> FloatArray:
        return x[:, : self.size]


@dataclass(frozen=True, slots=True)
class LogitDifference:
    """The first of two scores less the second, as log odds are."""

    def __call__(self, x: FloatArray) -> FloatArray:
        return x[:, :1] - x[:, 1:]
