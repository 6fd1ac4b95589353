"""Reports what native programs support on this machine, and what a worker would use."""

import os
from dataclasses import dataclass

from signalbox_kernels.native import ISA_VARIABLE, NativeUnavailable, best_isa
from signalbox_worker.runner.native.native_model import dtype_for_half
from signalbox_worker.runner.native.threads import default_num_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeProbe:
    """Capabilities as texts and counts."""

    kernels: str
    """Instruction set, or why there are none."""
    quantizations: str
    """Values of `--quantization` that can run here, besides "none"."""
    half_dtype: str
    """Type of activations of 16-bit models."""
    num_threads: int


def probe_natively() -> NativeProbe:
    """Finds out; compiles the native kernels unless they exist.

    Raises ValueError if SIGNALBOX_ISA names no instruction set.
    """
    num_threads = default_num_threads()
    try:
        found = best_isa().name.lower()
    except NativeUnavailable as error:
        return NativeProbe(
            kernels=f"none: {error}",
            quantizations="become floats",
            half_dtype="float32",
            num_threads=num_threads,
        )
    limit = os.environ.get(ISA_VARIABLE)
    return NativeProbe(
        kernels=f"{found}, with {ISA_VARIABLE}={limit}" if limit else found,
        quantizations="gguf int8 int4",
        half_dtype=dtype_for_half(),
        num_threads=num_threads,
    )
