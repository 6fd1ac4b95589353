"""Makes the runner of a model: in this process, or over several ranks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from signalbox_contract.startup import ReportProgress, ignore_progress
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.ranks.rank_shard import load_shard
from signalbox_worker.runner.ranks.service.rank_messages import Start
from signalbox_worker.runner.ranks.startup_checks import check_packages
from signalbox_worker.runner.runner import Runner

if TYPE_CHECKING:
    from signalbox_worker.runner.ranks.rank_network import RankNetwork


def make_runner(
    config: RunnerConfig,
    *,
    progress: ReportProgress = ignore_progress,
    on_lost: Callable[[str], None] = lambda _: None,
    network: "RankNetwork | None" = None,
) -> Runner:
    """Loads a model.

    Args:
        on_lost: called on any thread when a rank is lost; every call raises DeviceLost then.
        network: None starts the other ranks here; else others start them.

    Raises ModelError, ValueError or MemoryError with what is wrong and the remedy.
    """
    if config.parallel.num_ranks == 1:
        return load_shard(config, progress=progress)
    check_packages(config.model, config.cache, config.device, config.parallel)
    # gRPC's blocking server, and threads
    from signalbox_worker.runner.ranks.launchers import AwaitedRanks, LocalRanks
    from signalbox_worker.runner.ranks.ranked_runner import RankedRunner

    ranks = LocalRanks() if network is None else AwaitedRanks(network)
    return RankedRunner(Start.of(config), ranks=ranks, progress=progress, on_lost=on_lost)
