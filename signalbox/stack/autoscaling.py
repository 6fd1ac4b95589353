"""Computes the number of workers for the load: by requests that wait and blocks in use.

The targets and pauses are those of the autoscaler in deploy/kubernetes/.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from signalbox.settings.worker_range import WorkerRange

WAITING_PER_WORKER = 8
"""Requests in the admission queue for which one worker is due."""
KV_USAGE = 0.8
"""Mean share of a worker's KV blocks that are in use, at most."""
UP_PAUSE_S, DOWN_PAUSE_S = 15.0, 300.0
"""Least seconds between a change and one that adds workers, or takes one away."""
CALM_S = 600.0
"""Seconds for which fewer workers must have been enough before one is taken away."""


class Demand(NamedTuple):
    """Number of workers that were needed at a time."""

    at: float
    """Seconds on the launcher's clock."""
    num_workers: int


def needed_workers(*, num_waiting: int, kv_usages: Iterable[float]) -> int:
    """Returns how many workers the load needs.

    Args:
        num_waiting: requests in the scheduler's queue.
        kv_usages: of each worker that serves, the share of its KV blocks that are in use.
    """
    # Sums of shares are not exact: three workers at 0.8 need no fourth.
    by_blocks = math.ceil(round(sum(kv_usages) / KV_USAGE, 6))
    return max(math.ceil(num_waiting / WAITING_PER_WORKER), by_blocks)


def wanted_workers(
    demands: Sequence[Demand], bounds: WorkerRange, *, wanted: int, changed_at: float
) -> int:
    """Returns how many workers to keep from now on: more at once, fewer one by one.

    Args:
        demands: those of the last CALM_S seconds, in order; at least one, the present one.
        wanted: workers that are kept now.
        changed_at: time when that number was set.
    """
    now, needed = demands[-1]
    if needed > wanted and now - changed_at >= UP_PAUSE_S:
        wanted = needed
    is_calm = now - demands[0].at >= CALM_S and max(one.num_workers for one in demands) < wanted
    if is_calm and now - changed_at >= DOWN_PAUSE_S:
        wanted -= 1
    return min(max(wanted, bounds.least), bounds.most)
