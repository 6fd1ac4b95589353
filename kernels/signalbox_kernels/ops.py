"""The ops that a model step is made of: each calls the implementation for the device of its tensor.

The contract of an op is its reference in `torch/`: a signature, a docstring that states shapes,
dtypes and what is written, and a meaning in plain Torch that every implementation must equal. The
layout of the cache follows PagedAttention (Kwon et al., SOSP 2023): K and V of a token live in a
slot of a block, and a sequence finds its blocks in a table.

A layer's cache is always passed as a view of shape [num_blocks, 2, block_size, num_kv_heads,
head_size] (index 0 of the second dimension is K, 1 is V). Its strides are the caller's choice, with
the last dimension contiguous. Its elements are of the type of K and V, or of float8_e4m3fn: then
it holds K / k_scale and V / v_scale, rounded to nearest, and what is beyond +-448 as +-448. Or they
are int8: then `token_scales` is a view of shape [num_blocks, 2, block_size, num_kv_heads] float32
beside it, of a scale for each token and head, which is 1/127 of the largest magnitude.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from signalbox_kernels.torch import attention, experts, fp8, int4, kv_cache, recurrent, row_ops
from signalbox_kernels.torch.registry import implementation_of, register_reference

P = ParamSpec("P")
R = TypeVar("R")


def _of_first(first: Any, *_: Any) -> torch.device:
    device: torch.device = first.device
    return device


def _of_either_pool(src_pool: Any, dst_pool: Any, *_: Any) -> torch.device:
    """Returns the device of the pool that is not in RAM, if one is not."""
    return _of_first(dst_pool if src_pool.device.type == "cpu" else src_pool)


def _op(
    reference: Callable[P, R], device_of: Callable[..., torch.device] = _of_first
) -> Callable[P, R]:
    """Declares the op of a reference; tensors that name its device are passed by position."""
    name = reference.__name__
    register_reference(name, reference)

    @wraps(reference)
    def op(*args: P.args, **kwargs: P.kwargs) -> R:
        implementation: Callable[P, R] = implementation_of(name, device_of(*args))
        return implementation(*args, **kwargs)

    return op


reshape_and_cache = _op(kv_cache.reshape_and_cache)
rotary_and_cache = _op(kv_cache.rotary_and_cache)
copy_blocks = _op(kv_cache.copy_blocks)
swap_blocks = _op(kv_cache.swap_blocks, _of_either_pool)
paged_attention = _op(attention.paged_attention)
rms_norm = _op(row_ops.rms_norm)
fused_add_rms_norm = _op(row_ops.fused_add_rms_norm)
rotary_embedding = _op(row_ops.rotary_embedding)
silu_and_mul = _op(row_ops.silu_and_mul)
rms_norm_linear = _op(row_ops.rms_norm_linear)
linear_add = _op(row_ops.linear_add)
gather_logprobs = _op(row_ops.gather_logprobs)
mix_experts = _op(experts.mix_experts)
causal_convolution = _op(recurrent.causal_convolution)
gated_delta_rule = _op(recurrent.gated_delta_rule)
selective_scan = _op(recurrent.selective_scan)
gated_rms_norm = _op(recurrent.gated_rms_norm)
quantize_fp8 = _op(fp8.quantize_fp8)
fp8_linear = _op(fp8.fp8_linear)
w4a16_linear = _op(int4.w4a16_linear)
