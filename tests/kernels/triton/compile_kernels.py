"""Compiles every Triton kernel for a GPU that need not be there; a program of its own.

    python compile_kernels.py CAPABILITY [TYPE ...]    such as 90 bfloat16 float16

Without types kernels are compiled for bfloat16 and heads of 128 alone. Prints a line of JSON for
each (`Compiled`). Launchers are called with tensors without data, and a kernel's launch stops at
the binary, so that what is compiled is what the launchers ask for. A process of its own, because
Triton decides when it is imported whether it interprets.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, MockTensor

from signalbox_kernels.filters import Filters
from signalbox_kernels.torch.experts import ExpertWeights
from signalbox_kernels.torch.int4 import Int4Weight
from signalbox_kernels.triton import blocks, rms_norm, rotary, silu_and_mul
from signalbox_kernels.triton import reshape_and_cache as caching
from signalbox_kernels.triton.attention.paged_attention import paged_attention
from signalbox_kernels.triton.attention.work import Sharing
from signalbox_kernels.triton.experts import mixture
from signalbox_kernels.triton.matrices import few_rows, fp8, w4a16
from signalbox_kernels.triton.sampling import draws, logit_edits, logprobs

CAPABILITIES = (80, 89, 90, 100, 120)
LEAST_FP8 = 89
LEAST_DEPENDENT = 90
HEAD_SIZES = {
    torch.bfloat16: ((64, 128, 256), (8, 16, 32, 96)),
    torch.float16: ((128,), (64, 256)),
    torch.float32: ((128,), (256, 64, 8)),
}
"""Those for every capability, and those that the capabilities take in turns, one each."""
_HEADS, _KV_HEADS, _BLOCK_SIZE = 8, 2, 16
_launch = JITFunction.run


class NoDriver:
    """A device that only has a name."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


class _Printer:
    """Stands in for a kernel's launch, and prints what the compiler made of it."""

    def __init__(self) -> None:
        self.case = ""

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        mocks = [MockTensor(a.dtype, a.shape) if isinstance(a, Tensor) else a for a in args]
        binary = _launch(kernel, *mocks, grid=grid, warmup=True, **kwargs)
        ptx = binary.asm["ptx"]
        registers, stack = _resources(binary.asm["cubin"])
        continued = re.findall(r"wgmma\S+e4m3 \{[^}]*\}, \S+, \S+, (\S+),", ptx)
        print(
            json.dumps(
                {
                    "kernel": kernel.fn.__name__,
                    "case": self.case,
                    "shared_bytes": binary.metadata.shared,
                    "registers": registers,
                    "stack_bytes": stack,
                    "copies_of_16_bytes": len(re.findall(r"cp\.async\.cg\.\S+ \[.*\], 0x10", ptx)),
                    "loads": ptx.count("ld.global"),
                    "waits": ptx.count("griddepcontrol.wait"),
                    "begins_with_a_wait": _begins_with_a_wait(ptx),
                    "joins": len(re.findall(r"atom\.global\.gpu\.acq_rel\.add", ptx)),
                    "e4m3_products": len(continued),
                    "sums_from_zero": continued.count("0"),
                }
            ),
            flush=True,
        )


def _begins_with_a_wait(ptx: str) -> bool:
    """Returns whether a kernel waits for those before it ahead of each access to global memory,
    of each way out, and of the launch of the next kernel."""
    before, is_there, _ = ptx.partition("griddepcontrol.wait")
    others = r"ld\.global|st\.global|cp\.async|atom\.global|\bret;|launch_dependents"
    return bool(is_there) and re.search(others, before.partition(".entry")[2]) is None


def _resources(cubin: bytes) -> tuple[int, int]:
    """Returns the registers of a thread, and the bytes that it spills."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def _empty(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(*size, dtype=dtype, device="cuda")


def compile_layers(dtype: torch.dtype) -> None:
    """What has no heads."""
    rows, weight = _empty(4, 4096, dtype=dtype), _empty(4096, dtype=dtype)
    rms_norm.rms_norm(rows, weight, eps=1e-5)
    rms_norm.fused_add_rms_norm(rows, rows.clone(), weight, eps=1e-5)
    silu_and_mul.silu_and_mul(rows)


def compile_few_rows(dtype: torch.dtype) -> None:
    """Products of Llama's layers, which are alike, and with a bias."""
    x, norm = _empty(4, 4096, dtype=dtype), _empty(4096, dtype=dtype)
    for bias in (None, _empty(8192, dtype=dtype)):
        weight = _empty(8192, 4096, dtype=dtype)
        few_rows.rms_norm_linear(x, norm, weight, bias, eps=1e-5, is_gated=False)
        few_rows.rms_norm_linear(x, norm, weight, bias, eps=1e-5, is_gated=True)
        few_rows.linear_add(x, weight, bias, _empty(4, 8192, dtype=dtype))


def int4_weight(group_size: int) -> Int4Weight:
    """A matrix of 1,024 x 1,024 codes."""
    words, groups = _empty(1024, 128, dtype=torch.int32), _empty(64, 1024, dtype=torch.int32)
    return Int4Weight(words, groups, group_size, 1024, _empty(16, dtype=torch.int32))


def compile_int4(dtype: torch.dtype) -> None:
    """Products of few rows, whose columns programs share, and of many."""
    for num_rows, group_size, num_splits in ((1, 128, 4), (64, 32, 1), (512, 128, 1)):
        rows, bias = _empty(num_rows, 1024, dtype=dtype), _empty(1024, dtype=dtype)
        is_split = num_splits > 1
        w4a16.w4a16_linear(
            rows, int4_weight(group_size), None if is_split else bias, num_splits=num_splits
        )
        if dtype is torch.float32:
            return  # one tile for any number of rows


def compile_heads(
    dtype: torch.dtype, head_size: int, kv_dtype: torch.dtype, *, dependent: bool = False
) -> None:
    """Rotation, the cache and attention: prefill and decode, with both joins of shares."""
    cache = _empty(9, 2, _KV_HEADS, _BLOCK_SIZE, head_size, dtype=kv_dtype).transpose(2, 3)
    scales = None
    if kv_dtype is torch.int8:
        codes = _BLOCK_SIZE * head_size
        heads = _empty(9, 2, _KV_HEADS, codes + 4 * _BLOCK_SIZE, dtype=torch.int8)
        values, ends = heads.split((codes, 4 * _BLOCK_SIZE), dim=-1)
        cache = values.view(9, 2, _KV_HEADS, _BLOCK_SIZE, head_size).transpose(2, 3)
        scales = ends.view(torch.float32).transpose(2, 3)
    query = _empty(64, _HEADS, head_size, dtype=dtype)
    key_value = _empty(64, 2, _KV_HEADS, head_size, dtype=dtype)
    angles = _empty(64, 1, head_size, dtype=dtype)
    caching.reshape_and_cache(
        *key_value.unbind(dim=1), cache, _empty(64), token_scales=scales, dependent=dependent
    )
    rotary.rotary_embedding(query, angles, angles)
    for norms in (None, (_empty(head_size, dtype=dtype), _empty(head_size, dtype=dtype))):
        rotary.rotary_and_cache(
            query,
            key_value,
            angles,
            angles,
            cache,
            _empty(64),
            token_scales=scales,
            norms=norms,
            dependent=dependent,
        )
    rules: dict[str, Any] = {"sliding_window": 512, "soft_cap": 30.0}
    for num_seqs, rule, joins_inside in (
        (1, {}, False),
        (1, rules, True),
        (64, {}, True),
        (64, rules, False),
    ):
        paged_attention(
            query,
            cache,
            query_start=_empty(num_seqs + 1),
            context_lens=_empty(num_seqs),
            block_tables=_empty(num_seqs, 8, dtype=torch.int32),
            scale=0.1,
            token_scales=scales,
            sharing=Sharing(spare=16),
            joins_inside=joins_inside,
            dependent=dependent,
            **rule,
        )


def compile_both_ways(dtype: torch.dtype, head_size: int) -> None:
    """Attention of whole sequences, with both joins of shares."""
    cache = _empty(9, 2, _KV_HEADS, _BLOCK_SIZE, head_size, dtype=dtype).transpose(2, 3)
    for window, joins_inside in ((None, True), (512, False)):
        paged_attention(
            _empty(64, _HEADS, head_size, dtype=dtype),
            cache,
            query_start=_empty(2),
            context_lens=_empty(1),
            block_tables=_empty(1, 8, dtype=torch.int32),
            scale=0.1,
            is_causal=False,
            sliding_window=window,
            sharing=Sharing(spare=16),
            joins_inside=joins_inside,
        )


def compile_experts(dtype: torch.dtype, rows_per_scale: int = 0) -> None:
    """Mixtures of one token, of some, and of so many that the larger tiles are taken.

    Args:
        rows_per_scale: of weights in E4M3; 0 stands for weights of `dtype`.
    """
    weights = []
    for size in ((128, 2 * 768, 2048), (128, 2048, 768)):
        if rows_per_scale:
            num_groups = size[2] // 128 if rows_per_scale > 1 else 1
            num_scales = size[0] * size[1] // rows_per_scale
            scales = _empty(num_scales, num_groups, dtype=torch.float32)
            codes = _empty(*size, dtype=torch.float8_e4m3fn)
            weights.append(ExpertWeights(codes, scales, rows_per_scale))
        else:
            weights.append(ExpertWeights(_empty(*size, dtype=dtype)))
    for num_tokens in (1, 64, 4096):
        mixture.mix_experts(
            _empty(num_tokens, 2048, dtype=dtype),
            _empty(num_tokens, 128, dtype=dtype),
            *weights,
            experts_per_token=8,
            renormalise=True,
        )


def compile_sampling(dtype: torch.dtype) -> None:
    """Draws from a model's logits and from edited ones, the edits, and log probabilities."""
    logits, wide = _empty(4, 32000, dtype=dtype), _empty(4)
    floats = [_empty(4, dtype=torch.float32) for _ in range(4)]
    ints = [_empty(4, dtype=torch.int32) for _ in range(3)]
    filters = Filters(*floats[1:], ints[0])
    columns = draws.DrawColumns(wide, floats[0], filters, *ints[1:])
    draws.draw_tokens(logits, columns)
    logit_edits.copy_rows(logits, wide, mask_of_row=None, masks=None)
    masks = _empty(1, 1000, dtype=torch.int32)
    edited, status = logit_edits.copy_rows(logits, wide, mask_of_row=ints[0], masks=masks)
    logit_edits.add_to_tokens(edited, wide, ints[0], floats[0])
    tokens = _empty(4, 3000, dtype=torch.int32)
    logit_edits.penalise(edited, logit_edits.PenaltyColumns(wide, *floats[:3], wide, wide, tokens))
    draws.draw_tokens(edited, columns, status=status)
    logprobs.gather_logprobs(edited, wide, num_top=2)


def compile_fp8() -> None:
    """Products in E4M3 with each tile, scales of rows and of blocks of 128."""
    for num_tokens, num_groups in product((1, 33, 200, 1000), (1, 32)):
        x = _empty(num_tokens, 4096, dtype=torch.bfloat16)
        weight = _empty(4096, 4096, dtype=torch.float8_e4m3fn)
        rows_per_scale = 1 if num_groups == 1 else 128
        scales = _empty(4096 // rows_per_scale, num_groups, dtype=torch.float32)
        bias = _empty(4096, dtype=torch.bfloat16)
        fp8.fp8_linear(x, weight, scales, bias, rows_per_scale=rows_per_scale)
    fp8.quantize_fp8(x, scale=0.5)


def compile_kernels(printer: _Printer, capability: int, types: Sequence[str]) -> None:
    """Compiles each kernel for bfloat16 and heads of 128, or for each of `types` and some sizes."""
    pool, runs = _empty(9, 1 << 17), _empty(3, 3)
    blocks._copy_runs_kernel[(3, 1)](pool, pool, runs, pool.shape[1], WORDS=2048)
    compile_sampling(torch.bfloat16)
    if capability >= LEAST_FP8:
        printer.case = "E4M3"
        compile_fp8()
    sizes = {getattr(torch, name): HEAD_SIZES[getattr(torch, name)] for name in types}
    for dtype, (always, in_turns) in (sizes or {torch.bfloat16: ((128,), ())}).items():
        name = str(dtype).removeprefix("torch.")
        printer.case = name
        compile_layers(dtype)
        if dtype in few_rows.DTYPES:
            compile_few_rows(dtype)
        compile_int4(dtype)
        compile_experts(dtype)
        if capability >= 89 and dtype is torch.bfloat16:
            rows_per_scale = (1, 128)[CAPABILITIES.index(capability) % 2]
            compile_experts(dtype, rows_per_scale)
        turn = in_turns and (in_turns[CAPABILITIES.index(capability) % len(in_turns)],)
        for head_size in always + turn:
            printer.case = f"{name}, heads of {head_size}"
            compile_heads(dtype, head_size, dtype)
        if capability >= LEAST_DEPENDENT and dtype is torch.bfloat16:
            printer.case = f"{name}, launched early, heads of 128"
            compile_heads(dtype, 128, dtype, dependent=True)
        if dtype is torch.bfloat16:
            for head_size in always:
                printer.case = f"{name}, both ways, heads of {head_size}"
                compile_both_ways(dtype, head_size)
                printer.case = f"{name}, K and V in int8, heads of {head_size}"
                compile_heads(dtype, head_size, torch.int8)
        if capability >= LEAST_FP8 and dtype is torch.bfloat16:
            for head_size in always:
                printer.case = f"{name}, K and V in E4M3, heads of {head_size}"
                compile_heads(dtype, head_size, torch.float8_e4m3fn)


if __name__ == "__main__":
    capability = int(sys.argv[1])
    driver.set_active(NoDriver(capability))
    torch.cuda.get_device_capability = lambda device=None: divmod(capability, 10)
    shown = _Printer()
    JITFunction.run = lambda kernel, *args, **kwargs: shown.run(kernel, *args, **kwargs)
    with FakeTensorMode():
        compile_kernels(shown, capability, sys.argv[2:])
