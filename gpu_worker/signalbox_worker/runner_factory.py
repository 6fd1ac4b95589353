"""Makes the runner of a model: in this process, or over several ranks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from signalbox_contract.startup import ReportProgress, ignore_progress
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.parallel_config import ParallelConfig
from signalbox_worker.ranks.rank_shard import load_shard
from signalbox_worker.ranks.service.rank_messages import Start
from signalbox_worker.ranks.startup_checks import check_packages
from signalbox_worker.runner.runner import Runner
from signalbox_worker.store_config import DiskConfig, SharedConfig

if TYPE_CHECKING:
    from signalbox_worker.ranks.rank_network import RankNetwork


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
        disk_config, shared_config: one of them may ask for a store.
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
        disk=disk_config or DiskConfig(),
        shared=shared_config or SharedConfig(),
    )
    if start.parallel.num_ranks == 1:
        return load_shard(start, progress=progress)
    check_packages(model_config, cache_config, device_config, start.parallel)
    # gRPC's blocking server, and threads
    from signalbox_worker.ranks.launchers import AwaitedRanks, LocalRanks
    from signalbox_worker.ranks.ranked_runner import RankedRunner

    ranks = LocalRanks() if network is None else AwaitedRanks(network)
    return RankedRunner(start, ranks=ranks, progress=progress, on_lost=on_lost)
