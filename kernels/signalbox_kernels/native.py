"""The native CPU library through ctypes: its structs and functions.

It mirrors csrc/program/api.h, which describes the fields.
"""

import ctypes
import os
from ctypes import POINTER, c_float, c_int32, c_int64, c_size_t, c_void_p
from enum import IntEnum
from functools import cache

from signalbox_kernels import build


class Element(IntEnum):
    """Element type of weights, activations between products, K and V."""

    FLOAT32 = 0
    BFLOAT16 = 1


class Isa(IntEnum):
    """Instruction sets, from the one that runs anywhere to the fastest."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_VNNI = 3
    AVX512_BF16 = 4
    AMX = 5


ISA_VARIABLE = "SIGNALBOX_ISA"
"""Environment variable that forces a lesser instruction set; see `isa_limit`."""


class Format(IntEnum):
    """Format of a packed weight: elements, or codes with scales."""

    PLAIN = 0
    BITS4 = 1
    BITS4_MINIMUM = 2
    BITS6 = 3
    BITS6_MINIMUM = 4
    BITS8 = 5


class Row(IntEnum):
    """Format of a buffer's rows."""

    ELEMENTS = 0
    FLOATS = 1
    CODES = 2


class OpKind(IntEnum):
    EMBED = 0
    NORM = 1
    LINEAR = 2
    ROTATE = 3
    ATTEND = 4
    HEAD = 5
    CODE = 6


class Epilogue(IntEnum):
    """Operation on the result of a product."""

    STORE = 0
    ADD = 1
    SWIGLU = 2


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
        ("format", c_int32),
        ("column", c_int32),
    )


class SbBuffer(ctypes.Structure):
    _fields_ = (("width", c_int32), ("row", c_int32))


class SbShape(ctypes.Structure):
    _fields_ = (
        ("element", c_int32),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
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
    "reserved",
)
DRAW_ARRAYS = (
    "logits",
    "logits_row",
    "targets",
    "keys",
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "top_k",
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
    )


class SbDraws(ctypes.Structure):
    """Mirrors csrc/sampling/sampling_api.h."""

    _fields_ = (
        *((name, c_int32) for name in DRAW_SIZES),
        *((name, c_void_p) for name in DRAW_ARRAYS),
    )


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "sb_best_isa": (c_int32, (c_int32,)),
    "sb_packed_bytes": (c_size_t, (c_int32, c_int64, c_int64, c_int32)),
    "sb_pack": (None, (c_int32, c_void_p, c_int64, c_int64, c_int32, c_void_p)),
    "sb_format_of": (c_int32, (c_int32,)),
    "sb_quantised_bytes": (c_size_t, (c_int32, c_int64, c_int64, c_int32)),
    "sb_pack_blocks": (
        None,
        (c_int32, c_void_p, c_int64, c_int64, c_int64, c_int32, c_void_p),
    ),
    "sb_quantise": (c_int32, (c_int32, c_void_p, c_int64, c_void_p)),
    "sb_program_new": (
        c_void_p,
        (POINTER(SbShape), POINTER(SbOp), c_int32, POINTER(SbBuffer), c_int32, c_int32, c_int32),
    ),
    "sb_program_free": (None, (c_void_p,)),
    "sb_program_bind": (None, (c_void_p, c_void_p, c_int64)),
    "sb_program_run": (c_int32, (c_void_p, POINTER(SbBatch))),
    "sb_program_profile": (None, (c_void_p, c_void_p)),
    "sb_sampler_new": (c_void_p, (c_void_p, c_int32, c_int32)),
    "sb_sampler_free": (None, (c_void_p,)),
    "sb_sampler_run": (c_int32, (c_void_p, POINTER(SbDraws))),
    "sb_program_buffer": (c_void_p, (c_void_p, c_int32, c_int32)),
}


class NativeUnavailable(Exception):
    """There is no native library here; the message gives the reason in one line."""


@cache
def library() -> ctypes.CDLL:
    """Loads the library, building it first if need be. Raises NativeUnavailable."""
    try:
        loaded = ctypes.CDLL(str(build.find_or_build()))
    except (build.BuildError, OSError) as error:
        raise NativeUnavailable(str(error)) from None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def isa_limit() -> Isa:
    """Returns the highest instruction set that SIGNALBOX_ISA permits; the last if it is unset.

    Raises ValueError if it names none.
    """
    name = os.environ.get(ISA_VARIABLE, "").strip()
    if not name:
        return max(Isa)
    try:
        return Isa[name.upper()]
    except KeyError:
        names = ", ".join(isa.name.lower() for isa in Isa)
        raise ValueError(f"{ISA_VARIABLE} is {name!r}; it is one of {names}") from None


def available_isas() -> list[Isa]:
    """Returns the sets that library and machine support, up to `isa_limit`, the lowest first.

    Raises NativeUnavailable, and ValueError as `isa_limit` does.
    """
    limit = isa_limit()
    return [isa for isa in Isa if isa <= limit and library().sb_best_isa(isa) == isa]


def best_isa() -> Isa:
    """Returns the highest of `available_isas`."""
    return available_isas()[-1]
