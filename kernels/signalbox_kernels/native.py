"""The native CPU library through ctypes: its functions, and the instruction sets that it has."""

import ctypes
import os
from ctypes import POINTER, c_int32, c_int64, c_size_t, c_void_p
from enum import IntEnum
from functools import cache

from signalbox_kernels import build
from signalbox_kernels.structs import SbBatch, SbBuffer, SbDraws, SbOp, SbShape


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
