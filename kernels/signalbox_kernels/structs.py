"""Mirrors the numbers and structs of csrc/program/api.h, which describes the fields."""

from __future__ import annotations  # a health probe that imports this loads no NumPy

import ctypes
from collections.abc import Iterable
from ctypes import c_float, c_int32, c_void_p
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING

from signalbox_kernels.filters import Filters

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


PANEL = 32
"""Columns of a packed matrix that are stored together; rows of buffers are padded to whole ones."""


class Element(IntEnum):
    """Element type of activations and of products that are not of codes; or of K and V, which alone
    may be in 8 bits."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    FP8_E4M3 = 3


class Row(IntEnum):
    """Format of a buffer's rows."""

    ELEMENTS = 0
    FLOATS = 1
    CODES = 2
    SHARED = 3
    WIDE_CODES = 4


class OpKind(IntEnum):
    EMBED = 0
    NORM = 1
    LINEAR = 2
    ROTATE = 3
    ATTEND = 4
    HEAD = 5
    CODE = 6
    SHRINK = 7
    SUM = 8
    ROUTE = 9
    GATHER = 10
    MIX = 11
    CONVOLVE = 12
    SCAN = 13
    GATED_NORM = 14
    KEEP = 15


class Epilogue(IntEnum):
    """Operation on the result of a product."""

    STORE = 0
    ADD = 1
    GATED = 2
    GATE = 3
    ACTIVATE = 4
    MODULATE = 5


class Activation(IntEnum):
    """Function of the result of a product."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    RELU = 3
    CLAMPED = 4
    IDENTITY = 5
    RELU_SQUARED = 6


class Index(IntEnum):
    """Property of a token by which rows of a table are looked up."""

    TOKEN_IDS = 0
    POSITIONS = 1
    TOKEN_TYPES = 2


ADDED = 4
"""Bit of an embedding's mode: its rows are added."""
OF_ROWS, CENTRED, TO_FLOATS, TO_SUM, UNNORMED = 1, 2, 4, 8, 16
"""Bits of a norm's mode."""


MIX_ADDED, MIX_COMMON = 1, 2
"""Bits of a mixture's mode."""
MOST_EXPERTS = 1024
"""Experts of a layer at most."""
MOST_INPUTS = 4
"""Inputs of a channel that a convolution sums at most."""
MOST_STATE_ROWS = 256
"""Elements of a key, which are rows of a head's state, at most."""


class Pairs(IntEnum):
    """Elements of a head that a rotation turns together."""

    HALVES = 0
    NEIGHBOURS = 1


class KeysAndValues(IntFlag):
    """Changes to what a rotation does with K and V: it rotates K and writes both to the cache."""

    PLAIN = 0
    NO_KEYS = 1
    VALUES_OF_KEYS = 2
    NORMED_VALUES = 4


class ScoreFunction(IntEnum):
    """Function that makes shares of scores."""

    SOFTMAX = 0
    SIGMOID = 1


class GatedNormMode(IntEnum):
    """Order of the norm and the product with gates, which may be two ops."""

    GATED_AFTER = 0
    GATED_BEFORE = 1
    GATED_SQUARES = 2
    NORMED_BY_SQUARES = 3


class ScanRule(IntEnum):
    """Rule by which a token changes the state of a head."""

    GATED_DELTA = 0
    SELECTIVE = 1


UNIT_COLUMNS = 16
"""Columns of a state, or channels, that lie together in a page."""


class OpRounding(IntEnum):
    """Codes that an op rounds its result to, where it is not coded by groups of 32."""

    NONE = 0
    INT8 = 1
    INT8_WITH_ZERO = 2
    E4M3 = 3


class SbOp(ctypes.Structure):
    _fields_ = (
        ("kind", c_int32),
        ("mode", c_int32),
        ("src", c_int32),
        ("dst", c_int32),
        ("layer", c_int32),
        ("window", c_int32),
        ("n", c_int32),
        ("eps", c_float),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("norm_q", c_void_p),
        ("norm_k", c_void_p),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("keys_and_values", c_int32),
        ("storage", c_int32),
        ("column", c_int32),
        ("gate", c_int32),
        ("adapter", c_int32),
        ("shrunk", c_int32),
        ("parts", c_void_p),
        ("first_token", c_int32),
        ("k_scale", c_float),
        ("v_scale", c_float),
        ("cap", c_float),
        ("scale", c_float),
        ("activation", c_int32),
        ("rounding", c_int32),
        ("group", c_int32),
        ("zero", c_float),
        ("limit", c_float),
        ("num_matrices", c_int32),
        ("src_step", c_int32),
        ("dst_step", c_int32),
        ("cache_group", c_int32),
    )


class SbAdapter(ctypes.Structure):
    _fields_ = (
        ("a", c_void_p),
        ("b", c_void_p),
        ("columns", c_int32),
        ("rank", c_int32),
    )


class SbBuffer(ctypes.Structure):
    _fields_ = (("width", c_int32), ("row", c_int32), ("copies", c_int32))


class SbRouting(ctypes.Structure):
    _fields_ = (
        ("num_experts", c_int32),
        ("num_chosen", c_int32),
        ("function", c_int32),
        ("renormalises", c_int32),
        ("num_groups", c_int32),
        ("num_chosen_groups", c_int32),
        ("num_summed", c_int32),
        ("has_common", c_int32),
        ("scale", c_float),
        ("bias", c_void_p),
        ("scales", c_void_p),
    )


class SbPlace(ctypes.Structure):
    _fields_ = (("page", c_int32), ("offset", c_int32), ("page_bytes", c_int32))


class SbConvolution(ctypes.Structure):
    _fields_ = (
        ("num_channels", c_int32),
        ("width", c_int32),
        ("column", c_int32),
        ("factor", c_int32),
        ("gate", c_int32),
        ("activation", c_int32),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("place", SbPlace),
    )


class SbScan(ctypes.Structure):
    _fields_ = (
        ("rule", c_int32),
        ("num_heads", c_int32),
        ("num_key_heads", c_int32),
        ("heads_in_turn", c_int32),
        ("key_size", c_int32),
        ("value_size", c_int32),
        ("query", c_int32),
        ("key", c_int32),
        ("value", c_int32),
        ("step", c_int32),
        ("strength", c_int32),
        ("least_step", c_float),
        ("most_step", c_float),
        ("rates", c_void_p),
        ("biases", c_void_p),
        ("skips", c_void_p),
        ("place", SbPlace),
    )


class SbShape(ctypes.Structure):
    _fields_ = (
        ("element", c_int32),
        ("kv_element", c_int32),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("value_size", c_int32),
        ("block_size", c_int32),
        ("hidden_size", c_int32),
        ("vocab_size", c_int32),
        ("scale", c_float),
        ("rotary", c_void_p),
    )


DRAW_SIZES = (
    "num_rows",
    "vocab_size",
    "token_stride",
    "mask_stride",
    "max_logprobs",
)
DRAW_ARRAYS = (
    "logits",
    "logits_row",
    "targets",
    "keys",
    "temperature",
    *Filters._fields,
    "presence",
    "frequency",
    "repetition",
    "owners",
    "num_prompt",
    "num_tokens",
    "tokens",
    "suppressed_end",
    "suppressed",
    "bias_end",
    "bias_tokens",
    "biases",
    "mask_of_row",
    "masks",
    "num_logprobs",
    "drawn",
    "status",
    "logprob",
    "rank",
    "top_tokens",
    "top_logprobs",
)


class SbAttention(ctypes.Structure):
    _fields_ = (
        ("num_seqs", c_int32),
        ("table_stride", c_int32),
        ("slots", c_void_p),
        ("query_start", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
    )


class SbStates(ctypes.Structure):
    _fields_ = (
        ("num_seqs", c_int32),
        ("num_pages", c_int32),
        ("first_runs", c_void_p),
        ("run_start", c_void_p),
        ("reads", c_void_p),
        ("writes", c_void_p),
    )


class SbBatch(ctypes.Structure):
    _fields_ = (
        ("num_tokens", c_int32),
        ("num_rows", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("attention", SbAttention),
        ("row_tokens", c_void_p),
        ("logits_of_row", c_void_p),
        ("suppressed_end", c_void_p),
        ("suppressed", c_void_p),
        ("argmax", c_void_p),
        ("is_finite", c_void_p),
        ("logits", c_void_p),
        ("adapters", c_void_p),
        ("token_types", c_void_p),
        ("states", SbStates),
        ("settled", c_void_p),
    )


class SbDraws(ctypes.Structure):
    """Mirrors csrc/sampling/sampling_api.h."""

    _fields_ = (
        *((name, c_int32) for name in DRAW_SIZES),
        *((name, c_void_p) for name in DRAW_ARRAYS),
    )


@dataclass(slots=True, kw_only=True)
class AttentionArrays:
    """Cache slots of the tokens, and tokens and blocks of each sequence.

    Of several groups of layers, slots and tables of the first come first.
    """

    slots: NDArray[np.int64]
    query_start: NDArray[np.int64]
    context_lens: NDArray[np.int64]
    block_tables: NDArray[np.int32]

    def as_struct(self) -> SbAttention:
        return SbAttention(
            num_seqs=len(self.context_lens),
            table_stride=self.block_tables.shape[1],
            **_addresses(self, self.__slots__),
        )


@dataclass(slots=True, kw_only=True)
class StateArrays:
    """Pages of the states of each sequence, and the runs of rows that each leave one behind, as
    SbStates of csrc/program/api.h."""

    first_runs: NDArray[np.int32]
    """[num_seqs + 1]."""
    run_start: NDArray[np.int64]
    """[num_runs + 1]."""
    reads: NDArray[np.int32]
    """[num_seqs, num_pages]; negative for a state of zeros."""
    writes: NDArray[np.int32]
    """[num_runs, num_pages]; negative for none, which is kept for a step that settles."""

    def as_struct(self) -> SbStates:
        num_seqs, num_pages = self.reads.shape
        addresses = _addresses(self, self.__slots__)
        return SbStates(num_seqs=num_seqs, num_pages=num_pages, **addresses)


@dataclass(slots=True, kw_only=True)
class StepArrays:
    """Arrays of one step, as SbBatch of csrc/program/api.h; C-contiguous and alive during the
    run."""

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    attention: AttentionArrays
    row_tokens: NDArray[np.int64]
    logits_of_row: NDArray[np.int32]
    suppressed_end: NDArray[np.int32]
    suppressed: NDArray[np.int32]
    argmax: NDArray[np.int32]
    is_finite: NDArray[np.uint8]
    logits: NDArray[np.float32]
    adapters: NDArray[np.int32] | None = None
    token_types: NDArray[np.int32] | None = None
    states: StateArrays | None = None
    """States of its sequences; None for a program without recurrent layers."""
    settled: NDArray[np.int64] | None = None
    """[num_tokens] of a step that settles rows: which of those that the step before has kept. Ops
    with states alone are computed then. None of other steps."""

    def as_struct(self) -> SbBatch:
        optional = ("adapters", "token_types", "settled")
        absent = {name for name in optional if getattr(self, name) is None}
        names = (name for name in self.__slots__ if name not in ("attention", "states", *absent))
        return SbBatch(
            num_tokens=len(self.token_ids),
            num_rows=len(self.row_tokens),
            attention=self.attention.as_struct(),
            states=SbStates() if self.states is None else self.states.as_struct(),
            **_addresses(self, names),
        )


def _addresses(arrays: object, names: Iterable[str]) -> dict[str, int]:
    return {name: getattr(arrays, name).ctypes.data for name in names}
