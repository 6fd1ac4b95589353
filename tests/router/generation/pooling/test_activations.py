"""The last functions of vectors, compared with their formulas in float64."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from signalbox_contract.pooling import Activation
from signalbox_router.generation.pooling.activations import activated
from signalbox_router.generation.pooling.similarity import cosine


def softmax(x: Any) -> Any:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


FORMULAS: Mapping[Activation, Callable[[Any], Any]] = {
    "identity": lambda x: x,
    "normalize": lambda x: x / np.sqrt((x * x).sum()),
    "sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
    "softmax": softmax,
}


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 90.0, 1e4])
@pytest.mark.filterwarnings("error")
def test_a_function_equals_its_formula(activation: Activation, scale: float) -> None:
    vector = (np.random.default_rng(0).standard_normal(33) * scale).astype(np.float32)
    got = activated(vector, activation)
    assert got.dtype == np.float32
    expected = FORMULAS[activation](vector.astype(np.float64))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_a_vector_of_zeros_has_no_length_and_no_direction() -> None:
    zeros = np.zeros(4, dtype=np.float32)
    np.testing.assert_array_equal(activated(zeros, "normalize"), zeros)
    assert cosine(zeros, np.ones(4, dtype=np.float32)) == 0
