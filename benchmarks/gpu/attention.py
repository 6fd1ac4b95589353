"""Our attention kernel beside flash-attn's, of a Llama-3-8B layer: decodes, and a prefill."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.bench import BLOCK_SIZE, Bench
from benchmarks.gpu.measures import Measure
from benchmarks.gpu.probes import use_kernels
from signalbox_kernels import ops

_FLASH_PAGE = 256  # what upstream's flash-attn 2 takes


@torch.inference_mode()
def measure(bench: Bench) -> list[Measure]:
    use_kernels(bench)
    heads, kv_heads, size = (32, 8, 128) if not bench.tiny else (4, 2, 16)
    found = []
    for name, num_seqs, num_new, context in (
        ("decodes", bench.pick(64, 2), 1, bench.pick(2048, 64)),
        ("decode", 1, 1, bench.pick(8192, 64)),
        ("prefill", 1, bench.pick(4096, 64), bench.pick(4096, 64)),
    ):
        query = torch.randn(num_seqs * num_new, heads, size, device=bench.device).bfloat16()
        cache = torch.randn(
            num_seqs * -(-context // _FLASH_PAGE) * (_FLASH_PAGE // BLOCK_SIZE),
            2,
            BLOCK_SIZE,
            kv_heads,
            size,
            device=bench.device,
        ).bfloat16()
        ours = bench.kernel_seconds(
            _ours(query, cache, num_seqs=num_seqs, num_new=num_new, context=context)
        )
        title = f"attention, {num_seqs} {name} of context {context}"
        flash = _flash(query, cache, num_seqs=num_seqs, num_new=num_new, context=context)
        if flash is not None:
            found.append(
                Measure(
                    name=f"{title}: flash-attn",
                    value=bench.kernel_seconds(flash) * 1e6,
                    unit="µs",
                )
            )
        found.append(
            Measure(
                name=f"{title}: ours",
                value=ours * 1e6,
                unit="µs",
                of=f"{title}: flash-attn",
                aim=1.15,
                is_least=False,
                note="" if flash is not None else "flash-attn is not installed",
            )
        )
    return found


def _ours(
    query: Tensor, cache: Tensor, *, num_seqs: int, num_new: int, context: int
) -> Callable[[], object]:
    device, width = query.device, -(-context // BLOCK_SIZE)
    tables = torch.randperm(len(cache), device=device)[: num_seqs * width].view(num_seqs, width)
    query_start = torch.arange(num_seqs + 1, device=device) * num_new
    context_lens = torch.full((num_seqs,), context, device=device)
    block_tables = tables.int()
    return lambda: ops.paged_attention(
        query,
        cache,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=block_tables,
        scale=query.shape[-1] ** -0.5,
    )


def _flash(
    query: Tensor, cache: Tensor, *, num_seqs: int, num_new: int, context: int
) -> Callable[[], object] | None:
    """The same K and V in pages of flash-attn's own; None where it is not installed."""
    if query.device.type != "cuda" or importlib.util.find_spec("flash_attn") is None:
        return None
    from flash_attn import flash_attn_with_kvcache

    device, width = query.device, -(-context // _FLASH_PAGE)
    pages = cache.transpose(1, 2).reshape(-1, _FLASH_PAGE, 2, *cache.shape[-2:])
    keys, values = (part.contiguous() for part in pages.unbind(dim=2))
    tables = torch.randperm(len(keys), device=device)[: num_seqs * width].view(num_seqs, width)
    lens = torch.full((num_seqs,), context, dtype=torch.int32, device=device)
    queries = query.view(num_seqs, num_new, *query.shape[1:])
    block_table = tables.int()
    return lambda: flash_attn_with_kvcache(
        queries, keys, values, cache_seqlens=lens, block_table=block_table, causal=True
    )
