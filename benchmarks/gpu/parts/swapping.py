"""Swap against the card's own pinned copies, and against computing the same tokens again.

The choice that is judged is the scheduler's own, by the rates that the worker announces.
"""

import numpy as np

from benchmarks.gpu.bench import BLOCK_SIZE, Bench
from benchmarks.gpu.measures import Measure
from benchmarks.gpu.models import LLAMA_3_8B, make_runner
from benchmarks.gpu.parts.roofline import TO_DEVICE, TO_HOST
from benchmarks.gpu.steps import make_batch
from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_worker.kv.cache.cache_engine import CacheEngine
from signalbox_worker.runner.local_runner import LocalRunner


def measure(bench: Bench) -> list[Measure]:
    longest = bench.pick(8192, 128)
    contexts = [context for context in (128, 512, 2048, 8192) if context <= longest]
    runner = make_runner(bench, LLAMA_3_8B, num_seqs=8, num_tokens=longest)
    capacity = runner.profile()
    cost = CostModel(
        block_bytes=capacity.block_bytes,
        copy_bytes_per_s=capacity.copy_bytes_per_s,
        prefill_tokens_per_s=capacity.prefill_tokens_per_s,
    )
    num_blocks = longest // BLOCK_SIZE
    runner.init_cache_engine(num_gpu_blocks=2 * num_blocks, num_cpu_blocks=2 * num_blocks)
    found = _bandwidth(bench, runner.pools, num_blocks)
    for context in contexts:
        found += _against_recompute(bench, runner, cost, context)
    runner.pools.close()
    return found


def _bandwidth(bench: Bench, engine: CacheEngine, num_blocks: int) -> list[Measure]:
    rng = np.random.default_rng(0)
    in_a_row = np.arange(num_blocks)
    scattered = rng.permutation(2 * num_blocks)[:num_blocks]
    found = []
    for layout, blocks in (("neighbours", in_a_row), ("scattered", scattered)):
        mapping = _mapping(blocks, in_a_row)
        back = _mapping(in_a_row, blocks)
        num_bytes = num_blocks * engine.gpu_pool.shape[1]
        times = (
            (f"swap out, {layout}", TO_HOST, bench.seconds(lambda m=mapping: engine.swap_out(m))),
            (f"swap in, {layout}", TO_DEVICE, bench.seconds(lambda m=back: engine.swap_in(m))),
        )
        found += [
            Measure(name=name, value=num_bytes / s / 1e9, unit="GB/s", of=roof, aim=0.85)
            for name, roof, s in times
        ]
    return found


def _against_recompute(
    bench: Bench, runner: LocalRunner, cost: CostModel, context: int
) -> list[Measure]:
    engine, num_blocks = runner.pools, context // BLOCK_SIZE
    blocks = np.arange(num_blocks)
    batch = make_batch(
        num_seqs=1,
        num_new=context,
        context=context,
        num_blocks=num_blocks,
        vocab_size=runner.model.vocab_size,
    )

    def swap() -> None:
        engine.swap_out(_mapping(blocks, blocks))
        engine.swap_in(_mapping(blocks, blocks))

    swap_s = bench.seconds(swap, rounds=5)
    recompute_s = bench.seconds(lambda: runner.execute(batch), rounds=5)
    is_swap = cost.prefers_swap(num_blocks=num_blocks, num_tokens=context)
    chosen_s = swap_s if is_swap else recompute_s
    name = f"context {context}"
    return [
        Measure(name=f"{name}: swap out and in", value=swap_s * 1e3, unit="ms"),
        Measure(name=f"{name}: recompute", value=recompute_s * 1e3, unit="ms"),
        Measure(
            name=f"{name}: chosen over better",
            value=chosen_s / min(swap_s, recompute_s),
            unit="times",
            aim=1.1,
            is_least=False,
            note="swap is chosen" if is_swap else "recompute is chosen",
        ),
    ]


def _mapping(
    src: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    dst: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> BlockMapping:
    return BlockMapping(src.astype(np.int32), dst.astype(np.int32))
