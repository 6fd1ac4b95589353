"""A model's step as a list of native ops, which run in one call per step.

csrc/program/api.h describes the ops; each must equal its op in `torch/`, with sums in float32.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.adapters import AdapterSite, PackedPairs
from signalbox_kernels.arena import Arena
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.group import CalledOff, Group
from signalbox_kernels.native import Isa, NativeUnavailable, library, use
from signalbox_kernels.structs import (
    PANEL,
    Element,
    OpKind,
    Row,
    SbAdapter,
    SbBuffer,
    SbOp,
    SbShape,
    StepArrays,
)

_CALLED_OFF, _LACKS_STATES = 2, 3
_ELEMENT_BYTES = {
    Element.FLOAT32: 4,
    Element.BFLOAT16: 2,
    Element.INT8: 1,
    Element.FP8_E4M3: 1,
}
_SCALE_BYTES = 4  # of a token's K or V of one head


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramShape:
    """Sizes and types that all ops of a program share."""

    element: Element
    kv_element: Element
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    hidden_size: int
    vocab_size: int
    scale: float
    value_size: int = 0
    """Size of V of latents, with which the one vector of a token in the cache ends; 0 of others."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of the cache: all layers, K and V, with the scales of codes."""
        heads = (1 if self.value_size else 2) * self.num_layers * self.num_kv_heads
        head = self.head_size * _ELEMENT_BYTES[self.kv_element]
        if self.kv_element is Element.INT8:
            head += _SCALE_BYTES
        return heads * head * self.block_size


@dataclass(slots=True)
class ProgramParts:
    """Ops of a program in their order, and what they refer to.

    Buffers are named by index; rows of a buffer are tokens (or logit rows).
    """

    shape: ProgramShape
    arena: Arena
    ops: list[SbOp] = field(default_factory=list)
    buffers: list[SbBuffer] = field(default_factory=list)
    sites: list[AdapterSite] = field(default_factory=list)


class Program:
    """A built program with its thread pool. Run from one thread at a time."""

    def __init__(
        self,
        parts: ProgramParts,
        rotary: NDArray[np.float32],
        *,
        num_threads: int,
        isa: Isa | None,
        group: Group | None,
    ) -> None:
        self._library = library()
        self._handle: int | None = None
        self._arena = parts.arena
        self._arena.finish()
        self._pool: NDArray[np.uint8] | None = None
        self.shape = parts.shape
        self.sites = tuple(parts.sites)
        self._adapters: dict[int, Sequence[PackedPairs | None] | None] = {}
        self._adapter_table = (SbAdapter * 0)()
        self.weights = parts.arena.description
        self.weights_bytes = parts.arena.num_bytes
        self.arithmetic = _arithmetic_of(parts.ops, parts.buffers, self.shape.element)
        self._num_threads = num_threads
        self._op_ns: NDArray[np.int64] | None = None  # set while the program is profiled
        self.isa = use(isa)
        shape = SbShape(
            **{name: getattr(self.shape, name) for name in ProgramShape.__slots__},
            rotary=self._arena.keep(rotary),
        )
        self._handle = self._library.sb_program_new(
            ctypes.byref(shape),
            (SbOp * len(parts.ops))(*parts.ops),
            len(parts.ops),
            (SbBuffer * len(parts.buffers))(*parts.buffers),
            len(parts.buffers),
            num_threads,
            self.isa,
        )
        if not self._handle:
            raise NativeUnavailable(
                f"no native program of {self.shape} on {self.isa.name} with {num_threads} threads; "
                "if the system permits fewer, lower num_threads"
            )
        self._group = group
        if group is not None:
            self._library.sb_program_join(self._handle, group.handle)

    def bind(self, pool: NDArray[np.uint8]) -> None:
        """Sets the pool of KV blocks, [num_blocks, block_bytes]."""
        self._pool = pool
        self._library.sb_program_bind(self._handle, pool.ctypes.data, pool.strides[0])

    def set_adapter(self, slot: int, pairs: Sequence[PackedPairs | None] | None) -> None:
        """Sets what the adapter in a slot has at each of the `sites` in later steps.

        Takes as long however many adapters there are, but when it makes room for twice as many.
        """
        num_sites, num_slots = len(self.sites), max([slot, *self._adapters]) + 1
        if num_slots * num_sites > len(self._adapter_table):
            table = (SbAdapter * (2 * num_slots * num_sites))()
            ctypes.memmove(table, self._adapter_table, ctypes.sizeof(self._adapter_table))
            self._adapter_table = table
        for site, one in enumerate(pairs or [None] * num_sites):
            struct = SbAdapter() if one is None else one.as_struct()
            self._adapter_table[slot * num_sites + site] = struct
        self._adapters[slot] = pairs  # in place of what the table refers to no more
        table = self._adapter_table
        self._library.sb_program_adapters(self._handle, table, num_slots, num_sites)

    def run(self, arrays: StepArrays) -> None:
        """Computes one step; other Python threads run meanwhile.

        Raises MemoryError, CalledOff if the group was called off, and ValueError if the step lacks
        states of its rows, or the pages that the program's layers need, or settles rows that the
        step before has not kept.
        """
        status = self._library.sb_program_run(self._handle, ctypes.byref(arrays.as_struct()))
        if status == _CALLED_OFF:
            raise CalledOff("a process that this one sums with is lost")
        if status == _LACKS_STATES:
            raise ValueError(
                "the step has no states for all of its rows, or too few pages in them, or settles "
                "rows that were not kept"
            )
        if status:
            raise MemoryError("no memory for a step's activations; lower max_num_batched_tokens")

    def begin_profile(self) -> None:
        """Measures the time of each kind of op from now on; call it between steps only."""
        self._op_ns = np.zeros((self._num_threads, len(OpKind)), dtype=np.int64)
        self._library.sb_program_profile(self._handle, self._op_ns.ctypes.data)

    def end_profile(self) -> dict[str, int]:
        """Returns the nanoseconds of all threads by kind of op, such as "linear"."""
        assert self._op_ns is not None, "begin_profile comes first"
        self._library.sb_program_profile(self._handle, None)
        totals, self._op_ns = self._op_ns.sum(axis=0).tolist(), None
        return {kind.name.lower(): ns for kind, ns in zip(OpKind, totals, strict=True) if ns}

    @property
    def handle(self) -> int | None:
        """Handle for other native objects that use this program's threads."""
        return self._handle

    def view(self, index: int, *, width: int, num_tokens: int, dtype: np.dtype[Any]) -> AnyArray:
        """Returns a buffer as an array [num_tokens, padded width], to read or to write between
        runs; valid until it grows."""
        padded = -(-width // PANEL) * PANEL
        address = self._library.sb_program_buffer(self._handle, index, num_tokens)
        count = num_tokens * padded * dtype.itemsize
        memory = (ctypes.c_char * count).from_address(address)
        buffer: AnyArray = np.frombuffer(memoryview(memory), dtype=dtype)
        return buffer.reshape(num_tokens, padded)

    def __del__(self) -> None:
        if self._handle:
            self._library.sb_program_free(self._handle)
            self._handle = None


def _arithmetic_of(ops: Iterable[SbOp], buffers: Sequence[SbBuffer], element: Element) -> str:
    """Returns the type of the factors of products with whole numbers, "8 bits" or "16 bits"; that
    of elements if there are none."""
    rows = {buffers[op.src].row for op in ops if op.kind == OpKind.LINEAR}
    for row, name in ((Row.CODES, "8 bits"), (Row.WIDE_CODES, "16 bits")):
        if row in rows:
            return name
    return element.name.lower()
