"""Small native programs for tests. Importing this skips the module where there is no library."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from signalbox_kernels import native
from signalbox_kernels.arena import Arena
from signalbox_kernels.floats import BFLOAT16, FLOAT8_E4M3, AnyArray
from signalbox_kernels.group import Group
from signalbox_kernels.native import Isa
from signalbox_kernels.program import Program, ProgramShape
from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.structs import AttentionArrays, Element, StepArrays
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import FLOAT32
from tests.kernels.native.reference import wide

Dtype = np.dtype[Any]

INT8: Dtype = np.dtype(np.int8)
DTYPES = {FLOAT32: Element.FLOAT32, BFLOAT16: Element.BFLOAT16}
KV_DTYPES = DTYPES | {INT8: Element.INT8, FLOAT8_E4M3: Element.FP8_E4M3}
ELEMENTS = [
    pytest.param(isa, dtype, id=f"{isa.name.lower()}-{DTYPES[dtype].name.lower()}")
    for isa in ISAS
    for dtype in DTYPES
    if dtype is FLOAT32 or native.multiplies_bfloat16(isa)
]
"""Instruction sets, each with the dtypes that it computes in."""

# Of a function of sums: normed or gated rows, attention. The terms of 128 products of random
# numbers of magnitude 1 add up to 128 * 0.64, times 0.2 where a softmax reads them: the sum's
# error is below gamma(128) * 16 = 1.2e-4 were all roundings in one direction, and some
# sqrt(128) u * 16 = 1e-5 as they are in both (see tests.rounding). An exponential makes that a
# relative error of its result. In bfloat16 a value that the two sides round apart differs by a
# unit in the last place, 2^-7, and what is rounded once more (queries and keys) by two: 1.6e-2.
_TOLERANCE = {FLOAT32: 1e-4, BFLOAT16: 2e-2}


def assert_near(actual: AnyArray, expected: AnyArray, dtype: Dtype) -> None:
    """Allows what rounding in a type costs a function of sums."""
    tolerance = _TOLERANCE[dtype]
    np.testing.assert_allclose(
        wide(actual), wide(expected), rtol=tolerance, atol=tolerance, equal_nan=False
    )


def assert_same_bits(actual: AnyArray, expected: AnyArray) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == expected.tobytes()


def make_builder(dtype: Dtype, *, kv_dtype: Dtype | None = None, **shape: int) -> ProgramBuilder:
    sizes = {
        "num_layers": 2,
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_size": 16,
        "block_size": 16,
        "hidden_size": 50,
        "vocab_size": 97,
    }
    elements = {"element": DTYPES[dtype], "kv_element": KV_DTYPES[kv_dtype or dtype]}
    return ProgramBuilder(ProgramShape(**elements, scale=0.2, **(sizes | shape)), Arena())


def make_program(
    builder: ProgramBuilder,
    isa: Isa | None = None,
    num_threads: int = 2,
    *,
    group: Group | None = None,
) -> Program:
    rotary = angles(builder.shape.head_size)
    return builder.build(rotary, num_threads=num_threads, isa=isa, group=group)


def angles(head_size: int) -> NDArray[np.float32]:
    """[positions, 2, head_size / 2]."""
    frequencies = 10000.0 ** -(np.arange(0, head_size, 2) / head_size)
    radians = np.outer(np.arange(1024), frequencies)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def make_arrays(num_tokens: int, *, num_rows: int = 0, vocab: int = 97) -> StepArrays:
    return StepArrays(
        token_ids=np.arange(num_tokens, dtype=np.int64),
        positions=np.arange(num_tokens, dtype=np.int64),
        attention=AttentionArrays(
            slots=np.arange(num_tokens, dtype=np.int64),
            query_start=np.array([0, num_tokens], dtype=np.int64),
            context_lens=np.array([num_tokens], dtype=np.int64),
            block_tables=np.arange(-(-num_tokens // 16), dtype=np.int32)[None],
        ),
        row_tokens=np.arange(num_rows, dtype=np.int64),
        logits_of_row=np.full(num_rows, -1, dtype=np.int32),
        suppressed_end=np.zeros(num_rows, dtype=np.int32),
        suppressed=np.empty(0, dtype=np.int32),
        argmax=np.empty(num_rows, dtype=np.int32),
        is_finite=np.empty(num_rows, dtype=np.uint8),
        logits=np.zeros((num_rows, vocab), dtype=np.float32),
    )
