"""One line of the log when the load of a worker has changed, as vLLM's `log_stats` writes it.

A worker is passed over while as many requests run, are swapped and wait as its last line said,
and none was preempted since. A log ends with the worker at rest.
"""

import asyncio
import logging
import time

from signalbox_rpc.metrics.histogram import Histogram
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_scheduler.workers.engine.step_loop import StepLoop

logger = logging.getLogger(__name__)

_LINE = (
    "worker load: %(worker)s, %(prompt_tokens_per_s).1f prompt tokens/s,"
    " %(generated_tokens_per_s).1f generated tokens/s, %(steps_per_s).1f steps/s,"
    " running %(running)d, swapped %(swapped)d, waiting %(waiting)d,"
    " KV cache %(kv_cache_percent)d%% used, prefix hits %(prefix_hit_percent)d%%,"
    " preemptions %(preemptions)d"
)
_LOAD = ("running", "swapped", "waiting")
_AT_REST = (0, 0, 0)


_Counts = dict[str, float]
"""Counts of one worker since it joined, by the name of their samples."""


def _counts(scheduler: Scheduler) -> _Counts:
    found = _Counts(num_steps=scheduler.num_steps)
    for sample in scheduler.samples():
        if not (sample.labels or isinstance(sample.value, Histogram)):
            found[sample.name] = sample.value
    return found


class StatsLog:
    """Remembers what it said last of each worker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before: dict[StepLoop, _Counts] = {}
        self._written: dict[StepLoop, tuple[object, ...]] = {}
        self._at = time.monotonic()

    async def run(self, interval_s: float) -> None:
        """Writes lines until it is cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.write(time.monotonic())

    def write(self, now: float) -> None:
        """Writes a line of each worker whose load is not what its last line said."""
        for step_loop in (step_loops := list(self._cluster.step_loops)):
            counts, before = _counts(step_loop.scheduler), self._before.get(step_loop, {})
            since = {name: number - before.get(name, 0) for name, number in counts.items()}
            fields = self._fields(step_loop, since, now - self._at)
            load = tuple(fields[name] for name in _LOAD)
            if load != self._written.get(step_loop, _AT_REST) or fields["preemptions"]:
                logger.info(_LINE, fields)
                self._written[step_loop] = load
            self._before[step_loop] = counts
        for kept in (self._before, self._written):
            for gone in kept.keys() - set(step_loops):
                del kept[gone]
        self._at = now

    def _fields(self, step_loop: StepLoop, since: _Counts, seconds: float) -> dict[str, object]:
        scheduler, gpu = step_loop.scheduler, step_loop.scheduler.blocks.gpu
        queries = since["prefix_cache_queries"]
        return {
            "worker": step_loop.worker_name,
            "prompt_tokens_per_s": round(since["prompt_tokens"] / seconds, 1),
            "generated_tokens_per_s": round(since["generation_tokens"] / seconds, 1),
            "steps_per_s": round(since["num_steps"] / seconds, 1),
            "running": len(scheduler.running),
            "swapped": len(scheduler.swapped),
            "waiting": len(self._cluster.admission),
            "kv_cache_percent": round(100 * gpu.share_in_use),
            "prefix_hit_percent": round(100 * since["prefix_cache_hits"] / max(1, queries)),
            "preemptions": since["num_preemptions"],
        }
