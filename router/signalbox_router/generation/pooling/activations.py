"""The last function of a model's vector, which a client may leave out."""

from collections.abc import Callable, Mapping

import numpy as np

from signalbox_contract.pooling import Activation, Vector


def activated(vector: Vector, activation: Activation) -> Vector:
    """Returns the function of vectors of float32, [size] or [num_vectors, size], computed in
    float32."""
    return _FUNCTIONS[activation](vector)


def normalized(vector: Vector) -> Vector:
    """Returns vectors with length 1; a vector of zeros stays as it is."""
    squares = np.square(vector, dtype=np.float32)
    length = np.sqrt(np.sum(squares, axis=-1, keepdims=True, dtype=np.float32))
    return np.asarray(vector / np.maximum(length, np.float32(1e-12)), dtype=np.float32)


def _sigmoid(vector: Vector) -> Vector:
    small = np.exp(-np.abs(vector))  # at most 1, so that nothing overflows
    return np.asarray(np.where(vector >= 0, 1, small) / (1 + small), dtype=np.float32)


def _softmax(vector: Vector) -> Vector:
    weights = np.exp(vector - vector.max())
    return np.asarray(weights / weights.sum(), dtype=np.float32)


def _identity(vector: Vector) -> Vector:
    return vector


_FUNCTIONS: Mapping[Activation, Callable[[Vector], Vector]] = {
    "identity": _identity,
    "normalize": normalized,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
}
