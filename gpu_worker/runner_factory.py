"""Makes the runner of a model: in this process, or over several ranks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from contract.model import StoreCapacity
from contract.startup import ReportProgress, ignore_progress
from gpu_worker.batch.runner_protocol import Runner
from gpu_worker.config import (
    CacheConfig,
    DeviceConfig,
    DiskConfig,
    ModelConfig,
    ModelError,
    ParallelConfig,
)
from gpu_worker.ranks.service.rank_messages import Start
from gpu_worker.ranks.share import Share, load_share

if TYPE_CHECKING:
    from gpu_worker.ranks.rank_network import RankNetwork


def make_runner(
    model_config: ModelConfig,
    cache_config: CacheConfig,
    *,
    device_config: DeviceConfig,
    disk_config: DiskConfig | None = None,
    parallel_config: ParallelConfig | None = None,
    progress: ReportProgress = ignore_progress,
    on_lost: Callable[[str], None] = lambda _: None,
    network: "RankNetwork | None" = None,
) -> Runner:
    """Loads a model.

    Args:
        disk_config: of a worker of one rank.
        parallel_config: sizes; None is one rank.
        on_lost: called on any thread when a rank is lost; every call raises DeviceLost then.
        network: None starts the other ranks here; else others start them.

    Raises ModelError, ValueError or MemoryError with what is wrong and the remedy.
    """
    start = Start(
        model=model_config,
        cache=cache_config,
        parallel=parallel_config or ParallelConfig(),
        device=device_config,
    )
    if start.parallel.num_ranks == 1:
        runner = load_share(start, progress=progress)
        if disk_config is not None and disk_config.kv_disk is not None:
            _add_disk(runner, disk_config)
        return runner
    from gpu_worker.ranks.ranked_runner import RankedRunner  # gRPC's blocking server, and threads

    return RankedRunner(start, progress=progress, on_lost=on_lost, network=network)


def _add_disk(runner: Share, config: DiskConfig) -> None:
    """Gives a runner the disk tier. Raises ModelError, FolderError or OSError."""
    # Workers without one load no SQLite.
    from gpu_worker.kv_disk.disk_tier import DiskTier
    from gpu_worker.kv_store.runner_store import RunnerStore

    if runner.model.pooling is not None:
        raise ModelError("--kv-disk takes a model that generates; leave it out")
    content = runner.block_content()
    tier = DiskTier(
        config,
        block_bytes=content.block_bytes,
        model=runner.model.name,
        identify=content.identity,
    )
    runner.use_store(
        RunnerStore(
            tier,
            StoreCapacity(
                kind="disk",
                read_bytes_per_s=tier.read_bytes_per_s,
                max_write_bytes_per_s=config.disk_write_bytes_per_s,
                max_write_bytes_per_day=config.disk_write_bytes_per_day,
            ),
        )
    )
