"""Small native programs for tests. Importing this skips the module where there is no library."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from signalbox_kernels import native
from signalbox_kernels.arena import Arena
from signalbox_kernels.native import Isa
from signalbox_kernels.program import Program, ProgramBuilder, ProgramShape
from signalbox_kernels.storage import StoredMatrix
from signalbox_kernels.structs import AttentionArrays, Element, StepArrays
from signalbox_kernels.tensors import as_array, as_tensor
from tests.kernels.instruction_sets import ISAS
from tests.kernels.quantised_matrices import expand

DTYPES = {torch.float32: Element.FLOAT32, torch.bfloat16: Element.BFLOAT16}
ELEMENTS = [
    pytest.param(isa, dtype, id=f"{isa.name.lower()}-{DTYPES[dtype].name.lower()}")
    for isa in ISAS
    for dtype in DTYPES
    if dtype is torch.float32 or native.multiplies_bfloat16(isa)
]
"""Instruction sets, each with the dtypes that it computes in."""

# Of a function of sums: normed or gated rows, attention. The terms of 128 products of random
# numbers of magnitude 1 add up to 128 * 0.64, times 0.2 where a softmax reads them: the sum's
# error is below gamma(128) * 16 = 1.2e-4 were all roundings in one direction, and some
# sqrt(128) u * 16 = 1e-5 as they are in both (see tests.rounding). An exponential makes that a
# relative error of its result. In bfloat16 a value that the two sides round apart differs by a
# unit in the last place, 2^-7, and what is rounded once more (queries and keys) by two: 1.6e-2.
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


def arrays_of(value: Any) -> Any:
    """Returns tensors, alone or in a tuple, as arrays, and all else as it is."""
    if isinstance(value, tuple):
        return tuple(map(arrays_of, value))
    return as_array(value) if isinstance(value, Tensor) else value


def taking_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        named = {name: arrays_of(value) for name, value in options.items()}
        return method(*map(arrays_of, arguments), **named)

    return call


class TensorArena(Arena):
    """An arena that packs tensors."""

    pack = taking_tensors(Arena.pack)


class TensorProgram(Program):
    """A program whose pool and buffers are tensors."""

    bind = taking_tensors(Program.bind)

    def view(self, index: int, *, width: int, num_tokens: int, dtype: torch.dtype) -> Any:
        of_array = as_array(torch.empty(0, dtype=dtype)).dtype
        return as_tensor(super().view(index, width=width, num_tokens=num_tokens, dtype=of_array))


class TensorBuilder(ProgramBuilder):
    """A builder of programs with tensors for weights."""

    norm = taking_tensors(ProgramBuilder.norm)
    linear = taking_tensors(ProgramBuilder.linear)
    rotate = taking_tensors(ProgramBuilder.rotate)


def make_builder(
    dtype: torch.dtype, *, kv_dtype: torch.dtype | None = None, **shape: int
) -> TensorBuilder:
    sizes = {
        "num_layers": 2,
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_size": 16,
        "block_size": 16,
        "hidden_size": 50,
        "vocab_size": 97,
    }
    elements = {"element": DTYPES[dtype], "kv_element": DTYPES[kv_dtype or dtype]}
    full = ProgramShape(**elements, scale=0.2, **(sizes | shape))
    return TensorBuilder(full, TensorArena())


def make_program(
    builder: TensorBuilder, isa: Isa | None = None, num_threads: int = 2
) -> TensorProgram:
    rotary = as_array(angles(builder.shape.head_size))
    return TensorProgram(builder, rotary, num_threads=num_threads, isa=isa)


def angles(head_size: int) -> Tensor:
    """[positions, 2, head_size / 2]."""
    frequencies = 10000.0 ** -(torch.arange(0, head_size, 2) / head_size)
    radians = torch.outer(torch.arange(1024.0), frequencies)
    return torch.stack([radians.cos(), radians.sin()], dim=1)


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


def make_matrix(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def values_of(matrix: StoredMatrix) -> Tensor:
    """[rows, columns] float32 of blocks."""
    return torch.from_numpy(expand(matrix))
