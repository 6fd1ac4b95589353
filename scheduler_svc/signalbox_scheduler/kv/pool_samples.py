"""Metrics of the pools of one worker."""

from collections.abc import Iterator

from signalbox_contract.cache_groups import describe_groups, num_tokens_in
from signalbox_rpc.metrics.sample import Sample, gauge
from signalbox_scheduler.kv.block_manager import BlockSpaceManager


def pool_samples(blocks: BlockSpaceManager, *, cache_dtype: str) -> Iterator[Sample]:
    size = blocks.block_size
    num_tokens = num_tokens_in(blocks.gpu.num_blocks, blocks.groups, block_size=size)
    yield gauge(
        "cache_config_info",
        "How a worker's KV cache is set up; always 1.",
        1,
        block_size=str(size),
        num_gpu_blocks=str(blocks.gpu.num_blocks),
        num_cpu_blocks=str(blocks.cpu.num_blocks),
        kv_cache_size_tokens=str(num_tokens),
        kv_cache_max_concurrency=f"{blocks.sizes.num_longest:.4g}",
        groups=describe_groups(blocks.groups),
        enable_prefix_caching=str(blocks.prefix_caching),
        cache_dtype=cache_dtype,
    )
    yield gauge(
        "kv_cache_usage_perc",
        "Share of the KV-cache blocks that requests hold, 1 is all.",
        blocks.gpu.share_in_use,
    )
    yield gauge(
        "cpu_cache_usage_perc",
        "Share of the swap blocks that requests hold, 1 is all.",
        blocks.cpu.share_in_use,
    )
    yield gauge("num_gpu_blocks", "KV-cache blocks.", blocks.gpu.num_blocks)
    yield gauge("num_cpu_blocks", "Swap blocks.", blocks.cpu.num_blocks)
