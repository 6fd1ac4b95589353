"""The ops of a model step on CUDA, in Triton: one module a kernel, with its launcher.

`torch/` has the contracts, and what each launcher must equal. Under
Triton's interpreter (TRITON_INTERPRET=1 before the first import of Triton) they run on a CPU, which
is how they are tested. They have never run on a GPU.

This module imports no Triton, which not every installation has; the others do.
"""

from importlib import import_module
from importlib.util import find_spec

from signalbox_kernels.torch import registry

MAX_HEAD_SIZE = 256
"""Largest head size that attention supports."""
MAX_GROUP = 128
"""Most heads on one K and V head that attention supports."""

_MODULES = {
    "reshape_and_cache": "reshape_and_cache",
    "paged_attention": "attention.paged_attention",
    "copy_blocks": "blocks",
    "swap_blocks": "blocks",
    "rms_norm": "rms_norm",
    "fused_add_rms_norm": "rms_norm",
    "rotary_embedding": "rotary",
    "rotary_and_cache": "rotary",
    "silu_and_mul": "silu_and_mul",
    "rms_norm_linear": "matrices.few_rows",
    "linear_add": "matrices.few_rows",
    "mix_experts": "experts.mixture",
    "gather_logprobs": "sampling.logprobs",
    "w4a16_linear": "matrices.w4a16",
    "quantize_fp8": "matrices.fp8",
    "fp8_linear": "matrices.fp8",
}


def is_installed() -> bool:
    """Returns whether Triton can be imported."""
    return find_spec("triton") is not None


def register_ops(device_type: str) -> None:
    """Registers these implementations of all ops for a type of device."""
    for op, module in _MODULES.items():
        launcher = getattr(import_module(f"{__name__}.{module}"), op)
        registry.register(op, device_type, launcher)


def unregister_ops(device_type: str) -> None:
    """Removes the implementations, so that the reference runs."""
    for op in _MODULES:
        registry.unregister(op, device_type)
