"""The native CPU library through ctypes: its functions, and the instruction sets that it has."""

import ctypes
import logging
import os
from ctypes import POINTER, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from enum import IntEnum
from functools import cache

from signalbox_kernels import build
from signalbox_kernels.compilation import (
    BFLOAT16_FLAG,
    BuildError,
    BuildTimeout,
    flags_of_sets,
    machine,
)
from signalbox_kernels.structs import SbAdapter, SbBatch, SbBuffer, SbDraws, SbOp, SbShape

logger = logging.getLogger(__name__)


class Isa(IntEnum):
    """Instruction sets; of one architecture's, a higher number is a faster set."""

    PORTABLE = 0
    AVX2 = 1
    AVX2_VNNI = 2
    AVX512 = 3
    AVX512_VNNI = 4
    AVX512_BF16 = 5
    AMX = 6
    NEON_DOTPROD = 7
    NEON_I8MM = 8


ISA_VARIABLE = "SIGNALBOX_ISA"
"""Environment variable that forces a lesser instruction set; see `isa_limit`."""


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "sb_machine_has": (c_int32, (c_int32,)),
    "sb_use_kernels": (None, (c_int32, c_void_p)),
    "sb_multiplies_bfloat16": (c_int32, (c_int32,)),
    "sb_packed_bytes": (c_size_t, (c_int32, c_int64, c_int64, c_int32)),
    "sb_pack": (None, (c_int32, c_void_p, c_int64, c_int64, c_int64, c_int32, c_void_p)),
    "sb_quantise": (c_int32, (c_int32, c_void_p, c_int64, c_void_p)),
    "sb_program_new": (
        c_void_p,
        (POINTER(SbShape), POINTER(SbOp), c_int32, POINTER(SbBuffer), c_int32, c_int32, c_int32),
    ),
    "sb_program_free": (None, (c_void_p,)),
    "sb_program_bind": (None, (c_void_p, c_void_p, c_int64)),
    "sb_program_adapters": (None, (c_void_p, POINTER(SbAdapter), c_int32, c_int32)),
    "sb_group_bytes": (c_int64, (c_int32, c_int64)),
    "sb_group_new": (c_void_p, (c_void_p, c_int32, c_int32, c_int64)),
    "sb_group_free": (None, (c_void_p,)),
    "sb_group_joined": (c_uint32, (c_void_p,)),
    "sb_group_waited_ns": (c_int64, (c_void_p,)),
    "sb_group_call_off": (None, (c_void_p,)),
    "sb_program_join": (None, (c_void_p, c_void_p)),
    "sb_program_run": (c_int32, (c_void_p, POINTER(SbBatch))),
    "sb_program_profile": (None, (c_void_p, c_void_p)),
    "sb_sampler_new": (c_void_p, (c_void_p, c_int32, c_int32)),
    "sb_sampler_free": (None, (c_void_p,)),
    "sb_sampler_run": (c_int32, (c_void_p, POINTER(SbDraws))),
    "sb_program_buffer": (c_void_p, (c_void_p, c_int32, c_int32)),
    "sb_match": (
        c_int32,
        (c_void_p, c_void_p, c_int32, c_void_p, c_int32, c_int32, c_void_p, c_void_p),
    ),
}


class NativeUnavailable(Exception):
    """There is no native library here; the message gives the reason in one line."""


_loaded: dict[Isa, ctypes.CDLL] = {}


@cache
def library() -> ctypes.CDLL:
    """Loads what all sets share, building it first if need be. Raises NativeUnavailable."""
    loaded = _load(build.COMMON)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def _load(part: str) -> ctypes.CDLL:
    try:
        found = build.find_or_build(part)[part]
        if isinstance(found, BuildError):
            raise found
        return ctypes.CDLL(str(found))
    except (BuildError, OSError) as error:
        raise NativeUnavailable(str(error)) from error


def use(isa: Isa | None = None) -> Isa:
    """Loads the kernels of a set, or of the best one, building them first if need be.

    Returns the set. Raises NativeUnavailable if the machine or the compiler lacks it, and
    ValueError as `isa_limit` does.
    """
    if isa is None:
        return best_isa()
    if isa not in _loaded:
        if isa not in _machine_sets():
            raise NativeUnavailable(f"this machine has no {isa.name}")
        add_kernels(isa, _load(isa.name.lower()))
    return isa


def add_kernels(isa: Isa, kernels: ctypes.CDLL) -> None:
    """Makes all later programs and samplers of a set use the kernels of a library."""
    kernels.sb_kernel_table.restype = c_void_p
    library().sb_use_kernels(isa, kernels.sb_kernel_table())
    _loaded[isa] = kernels


def isa_limit() -> Isa:
    """Returns the highest instruction set that SIGNALBOX_ISA permits; the last if it is unset.

    Raises ValueError if it names none of this architecture.
    """
    name = os.environ.get(ISA_VARIABLE, "").strip()
    if not name:
        return max(Isa)
    names = tuple(flags_of_sets(machine()))
    if name.lower() not in names:
        raise ValueError(f"{ISA_VARIABLE} is {name!r}; it is one of {', '.join(names)}")
    return Isa[name.upper()]


def limit_permits_bfloat16() -> bool:
    """Returns whether SIGNALBOX_ISA is unset, or names a set that multiplies bfloat16.

    Raises ValueError as `isa_limit` does.
    """
    limit = isa_limit()
    if not os.environ.get(ISA_VARIABLE, "").strip():
        return True
    return BFLOAT16_FLAG in flags_of_sets(machine())[limit.name.lower()]


def _machine_sets() -> list[Isa]:
    """Returns the sets that the machine has, the lowest first."""
    sets = [Isa[name.upper()] for name in flags_of_sets(machine())]
    return [isa for isa in sets if library().sb_machine_has(isa)]


def best_isa() -> Isa:
    """Loads the highest set that `isa_limit`, machine and compiler permit; returns it.

    Raises NativeUnavailable, and ValueError as `isa_limit` does.
    """
    limit = isa_limit()
    unavailable: dict[str, NativeUnavailable] = {}
    for isa in reversed([isa for isa in _machine_sets() if isa <= limit]):
        try:
            use(isa)
        except NativeUnavailable as error:
            if isinstance(error.__cause__, BuildTimeout):  # may pass, so it excludes no set
                raise
            unavailable[isa.name] = error
            continue
        for name, reason in unavailable.items():
            logger.warning("the native CPU kernels do without %s: %s", name, reason)
        return isa
    raise next(iter(unavailable.values()))


def multiplies_bfloat16(isa: Isa) -> bool:
    """Returns whether a set has products of bfloat16; programs of float32 run on any."""
    return bool(library().sb_multiplies_bfloat16(use(isa)))
