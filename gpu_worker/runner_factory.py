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
    SharedConfig,
)
from gpu_worker.ranks.service.rank_messages import Start
from gpu_worker.ranks.share import Share, load_share

if TYPE_CHECKING:
    from gpu_worker.kv_store.runner_store import RunnerStore
    from gpu_worker.ranks.rank_network import RankNetwork


def make_runner(
    model_config: ModelConfig,
    cache_config: CacheConfig,
    *,
    device_config: DeviceConfig,
    disk_config: DiskConfig | None = None,
    shared_config: SharedConfig | None = None,
    parallel_config: ParallelConfig | None = None,
    progress: ReportProgress = ignore_progress,
    on_lost: Callable[[str], None] = lambda _: None,
    network: "RankNetwork | None" = None,
) -> Runner:
    """Loads a model.

    Args:
        disk_config, shared_config: of a worker of one rank; one of them may ask for a store.
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
        _add_store(runner, disk_config, shared_config)
        return runner
    from gpu_worker.ranks.ranked_runner import RankedRunner  # gRPC's blocking server, and threads

    return RankedRunner(start, progress=progress, on_lost=on_lost, network=network)


def _add_store(runner: Share, disk: DiskConfig | None, shared: SharedConfig | None) -> None:
    """Gives a runner the tier that is asked for.

    Raises ModelError, FolderError, SecretFileError or OSError.
    """
    has_disk = disk is not None and disk.kv_disk is not None
    has_server = shared is not None and shared.kv_store is not None
    if runner.model.pooling is not None and (has_disk or has_server):
        flag = "--kv-disk" if has_disk else "--kv-store"
        raise ModelError(f"{flag} takes a model that generates; leave it out")
    if disk is not None and has_disk:
        runner.use_store(_on_disk(runner, disk))
    elif shared is not None and has_server:
        runner.use_store(_on_server(runner, shared))


def _on_disk(runner: Share, config: DiskConfig) -> "RunnerStore":
    # Workers without one load no SQLite.
    from gpu_worker.kv_disk.disk_tier import DiskTier
    from gpu_worker.kv_store.runner_store import RunnerStore

    content = runner.block_content()
    tier = DiskTier(
        config,
        block_bytes=content.block_bytes,
        model=runner.model.name,
        identify=content.identity,
    )
    return RunnerStore(
        tier,
        StoreCapacity(
            kind="disk",
            read_bytes_per_s=tier.read_bytes_per_s,
            max_write_bytes_per_s=config.disk_write_bytes_per_s,
            max_write_bytes_per_day=config.disk_write_bytes_per_day,
        ),
    )


def _on_server(runner: Share, config: SharedConfig) -> "RunnerStore":
    from gpu_worker.kv_shared.shared_tier import SharedTier
    from gpu_worker.kv_store.runner_store import RunnerStore

    content = runner.block_content()
    tier = SharedTier(config, block_bytes=content.block_bytes, identify=content.identity)
    return RunnerStore(
        tier,
        StoreCapacity(
            kind="shared",
            max_write_bytes_per_s=config.store_write_bytes_per_s,
        ),
    )
