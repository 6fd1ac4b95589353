"""Calls of an engine beside generation: caches, sleep, profiles, metrics.

The same calls for `LLM` and `LLMEngine`; `AsyncLLMEngine` awaits them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler_svc.sequence import SequenceGroup
from signalbox.llm.core import EngineCore
from signalbox.llm.metrics import Metric, snapshot
from signalbox.llm.sampling_params import SamplingParams

KV_CACHE, WEIGHTS = "kv_cache", "weights"


class Queues(NamedTuple):
    """Requests by where they are, as vLLM's first engine shows them; copies."""

    waiting: list[SequenceGroup]
    running: list[SequenceGroup]
    swapped: list[SequenceGroup]


class Controls:
    """Calls on an engine between requests; not for use by several threads at a time."""

    __slots__ = ()

    @property
    def _controlled(self) -> EngineCore:
        raise NotImplementedError

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forgets every cached prefix, on the device and in swap space.

        Returns whether that could be done: False, having changed nothing, while a request is
        unfinished. Raises ValueError for `reset_running_requests`, which is not served;
        `reset_connector` asks for what happens anyway.
        """
        if reset_running_requests:
            raise ValueError("reset_running_requests is not served; finish or abort them first")
        return self._controlled.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Gives the memory of the KV cache back; until `wake_up` no request is taken.

        The weights stay where they are, which is what differs from vLLM on a GPU. Raises ValueError
        for another level, RuntimeError while a request is unfinished.
        """
        if level != 1:
            raise ValueError(f"sleep level {level} is not served; 1 drops the KV cache")
        self._controlled.sleep()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Allocates the KV cache again, empty; a no-op for an engine that is awake.

        Args:
            tags: of "kv_cache" and "weights"; without "kv_cache" nothing is to be done.

        Raises MemoryError if there is no room any more.
        """
        if unknown := set(tags or ()) - {KV_CACHE, WEIGHTS}:
            raise ValueError(f"tags has {min(unknown)!r}; use {KV_CACHE!r} and {WEIGHTS!r}")
        if tags is None or KV_CACHE in tags:
            self._controlled.wake_up()

    def is_sleeping(self) -> bool:
        return self._controlled.is_asleep

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Begins to record what the worker computes, until `stop_profile`.

        Raises RuntimeError without `profiler_config`, or if a recording goes on.
        """
        self._controlled.profiler.start(profile_prefix)

    def stop_profile(self) -> None:
        """Ends the recording, and writes it to the folder of `profiler_config`.

        The file is a gzipped Chrome trace. Raises RuntimeError if nothing is recorded.
        """
        self._controlled.profiler.stop()

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns a copy of what stands for no parameters: the model's defaults, then the class's.

        See `generation_config` in `EngineArgs`.
        """
        return self._controlled.default_params.clone()

    def get_metrics(self) -> list[Metric]:
        """Returns gauges, counters and histograms of the scheduler, under vLLM's names."""
        return snapshot(self._controlled.cluster)


class CoreControls(Controls):
    """The calls on an engine's core."""

    __slots__ = ("_core",)

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    @property
    def _controlled(self) -> EngineCore:
        return self._core


def queues(core: EngineCore) -> Queues:
    """Returns where the requests of an engine are now."""
    scheduler = core.scheduler
    return Queues(list(scheduler.admission), list(scheduler.running), list(scheduler.swapped))
