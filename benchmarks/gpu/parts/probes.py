"""First questions to a card: does what our design takes for granted hold there?

What pages flash-attn takes, views into a block-major pool, offsets past 2^31 elements, and whether
swaps and passes keep their order on real streams.
"""

import importlib.util
import random

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure, check
from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_kernels import ops, triton
from signalbox_kernels.torch import attention
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.kv.cache.block_dependencies import BlockUse
from signalbox_worker.kv.cache.cache_engine import CacheEngine

_PAGE_SIZES = (16, 32, 64, 128, 256)
_NUM_LAYERS, _LAYER = 4, 2
_NUM_HEADS, _NUM_KV_HEADS, _HEAD_SIZE = 8, 2, 64


@torch.inference_mode()
def measure(bench: Bench) -> list[Measure]:
    use_kernels(bench)
    return [_strided_views(bench), _far_offsets(bench), _event_order(bench), *_flash_pages(bench)]


def use_kernels(bench: Bench) -> None:
    """Makes the ops of a CUDA device Triton's, as a worker's backend does."""
    if bench.device.type == "cuda" and triton.is_installed():
        triton.register_ops("cuda")


def _strided_views(bench: Bench) -> Measure:
    """A layer's view of a block-major pool: its blocks are not next to each other."""
    generator = torch.Generator().manual_seed(0)
    size, lens = 16, torch.tensor([5, 33, 64, 17])
    shape = (32, _NUM_LAYERS, 2, size, _NUM_KV_HEADS, _HEAD_SIZE)
    pool = torch.randn(shape, generator=generator).bfloat16()
    query = torch.randn(len(lens), _NUM_HEADS, _HEAD_SIZE, generator=generator).bfloat16()
    tables = torch.randperm(32, generator=generator)[: 4 * len(lens)].view(len(lens), 4).int()
    arguments = {
        "query_start": torch.arange(len(lens) + 1),
        "context_lens": lens,
        "block_tables": tables,
    }
    expected = attention.paged_attention(query, pool[:, _LAYER], scale=0.125, **arguments)
    on_device = {name: value.to(bench.device) for name, value in arguments.items()}
    actual = ops.paged_attention(
        query.to(bench.device), pool.to(bench.device)[:, _LAYER], scale=0.125, **on_device
    )
    worst = _worst(actual, expected)
    return check("strided block-major view", passed=worst < 2e-2, note=f"off by {worst:.1e}")


def _worst(actual: Tensor, expected: Tensor) -> float:
    return float((actual.cpu().float() - expected.cpu().float()).abs().max())


def _far_offsets(bench: Bench) -> Measure:
    """Writes and copies beyond 2^31 elements of a pool come where they belong."""
    block_elements = 2 * 16 * _NUM_KV_HEADS * _HEAD_SIZE
    elements = bench.pick((1 << 31) + (1 << 24), 1 << 16)
    num_blocks = elements // block_elements
    pool = torch.zeros(
        num_blocks, 2, 16, _NUM_KV_HEADS, _HEAD_SIZE, dtype=torch.bfloat16, device=bench.device
    )
    key = torch.randn(1, _NUM_KV_HEADS, _HEAD_SIZE, device=bench.device).bfloat16()
    last = torch.tensor([num_blocks * 16 - 1], device=bench.device)
    ops.reshape_and_cache(key, -key, pool, last)
    is_written = torch.equal(pool[-1, 0, 15], key[0]) and torch.equal(pool[-1, 1, 15], -key[0])
    as_bytes = pool.view(num_blocks, -1).view(torch.uint8)
    ops.copy_blocks(as_bytes, torch.tensor([num_blocks - 1]), torch.tensor([num_blocks - 3]))
    is_copied = torch.equal(pool[-3], pool[-1])
    is_alone = not pool[0].any() and not pool[-2].any()
    return check(
        "offsets past 2^31 elements",
        passed=is_written and is_copied and is_alone,
        note=f"{num_blocks * block_elements:,} elements",
    )


def _event_order(bench: Bench) -> Measure:
    """Random swaps beside random passes give the bytes of one after the other, on a CPU."""
    rounds = bench.pick(20, 3)
    passed = sum(
        _run_steps(bench.device, seed) == _run_steps(torch.device("cpu"), seed)
        for seed in range(rounds)
    )
    return check("event order", passed=passed == rounds, note=f"{passed} of {rounds} runs")


def _run_steps(device: torch.device, seed: int) -> list[int]:
    rng, num_blocks = random.Random(seed), 32
    streams = streams_of(device)
    engine = CacheEngine(
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=num_blocks,
        block_bytes=1 << 18,
        device=device,
        streams=streams,
    )
    for step in range(12):
        engine.swap_out(_mapping(rng, num_blocks))
        engine.swap_in(_mapping(rng, num_blocks))
        source, target = rng.sample(range(num_blocks), 2)
        use = BlockUse(reads=np.array([source]), writes=np.array([target]))
        with engine.computing(lambda use=use: use):

            def add(source: int = source, target: int = target, step: int = step) -> None:
                engine.gpu_pool[target] = engine.gpu_pool[source] + step + 1

            streams.compute.run(add)
    engine.close()
    sums = engine.gpu_pool.cpu().long().sum(dim=1).tolist()
    return [*sums, *engine.cpu_pool.long().sum(dim=1).tolist()]


def _mapping(rng: random.Random, num_blocks: int) -> BlockMapping:
    count = rng.randrange(num_blocks // 2)
    sources, targets = (rng.sample(range(num_blocks), count) for _ in range(2))
    return BlockMapping(np.array(sources, dtype=np.int32), np.array(targets, dtype=np.int32))


def _flash_pages(bench: Bench) -> list[Measure]:
    """Finds the page sizes that flash-attn's paged cache takes here, and gets right."""
    if bench.device.type != "cuda" or importlib.util.find_spec("flash_attn") is None:
        return []
    return [_flash_page(bench, size) for size in _PAGE_SIZES]


def _flash_page(bench: Bench, size: int) -> Measure:
    from flash_attn import flash_attn_with_kvcache

    pool = torch.randn(8, 2, size, _NUM_KV_HEADS, _HEAD_SIZE, device=bench.device).bfloat16()
    query = torch.randn(2, 1, _NUM_HEADS, _HEAD_SIZE, device=bench.device).bfloat16()
    tables = torch.tensor([[3, 1], [0, 5]], dtype=torch.int32, device=bench.device)
    lens = torch.tensor([size + 3, 2 * size], dtype=torch.int32, device=bench.device)
    name = f"flash-attn: pages of {size}"
    try:
        actual = flash_attn_with_kvcache(
            query, pool[:, 0], pool[:, 1], cache_seqlens=lens, block_table=tables, causal=True
        )
    except (RuntimeError, TypeError) as error:
        note = str(error).partition("\n")[0]
        return Measure(name=name, value=0.0, unit="taken", note=note)
    expected = attention.paged_attention(
        query[:, 0],
        pool,
        query_start=torch.arange(3),
        context_lens=lens.long(),
        block_tables=tables,
        scale=_HEAD_SIZE**-0.5,
    )
    worst = _worst(actual[:, 0], expected)
    return Measure(name=name, value=float(worst < 2e-2), unit="taken", note=f"off by {worst:.1e}")
