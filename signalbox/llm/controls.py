"""Calls on an engine beside generation: caches, sleep, profiles, metrics.

`LLM` and `LLMEngine` share them; `AsyncLLMEngine` awaits them.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.metrics import Metric, snapshot
from signalbox.llm.requests.sampling_params import SamplingParams
from signalbox_scheduler.requests.sequence_group import SequenceGroup

KV_CACHE, WEIGHTS = "kv_cache", "weights"


class Queues(NamedTuple):
    """Copies of the requests by state, in the shape of vLLM's first engine."""

    waiting: list[SequenceGroup]
    running: list[SequenceGroup]
    swapped: list[SequenceGroup]


class Controls:
    """Calls on an engine between requests; only one thread may use it at a time.

    A Ctrl-C takes effect after a call that changes the engine.
    """

    __slots__ = ()

    @property
    def _controlled(self) -> EngineCore:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def shutdown(self) -> None:
        """Does the same as `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Removes every cached prefix, on the device and in swap space.

        Returns False without a change while a request is unfinished. Raises ValueError for
        `reset_running_requests`, which is not served; `reset_connector` asks for what happens
        anyway.
        """
        if reset_running_requests:
            raise ValueError("reset_running_requests is not served; finish or abort them first")
        with self._controlled.interrupts:
            return self._controlled.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Frees the memory of the KV cache; until `wake_up` no request is accepted.

        The weights stay in memory, unlike vLLM's on a GPU. Raises ValueError for another level,
        RuntimeError while a request is unfinished.
        """
        if level != 1:
            raise ValueError(f"sleep level {level} is not served; 1 drops the KV cache")
        with self._controlled.interrupts:
            self._controlled.sleep()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Allocates the KV cache again, empty; does nothing if the engine is awake.

        Args:
            tags: of "kv_cache" and "weights"; without "kv_cache" it does nothing.

        Raises MemoryError if there is not enough memory any more.
        """
        if unknown := set(tags or ()) - {KV_CACHE, WEIGHTS}:
            raise ValueError(f"tags has {min(unknown)!r}; use {KV_CACHE!r} and {WEIGHTS!r}")
        if tags is None or KV_CACHE in tags:
            with self._controlled.interrupts:
                self._controlled.wake_up()

    def is_sleeping(self) -> bool:
        return self._controlled.is_asleep

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Begins to record the worker's computation, until `stop_profile`.

        Raises RuntimeError without `profiler_config`, or if a recording is running.
        """
        with self._controlled.interrupts:
            self._controlled.profiler.start(profile_prefix)

    def stop_profile(self) -> None:
        """Ends the recording, and writes it to the folder of `profiler_config`.

        The file is a gzipped Chrome trace. Raises RuntimeError if no recording is running.
        """
        with self._controlled.interrupts:
            self._controlled.profiler.stop()

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns a copy of the defaults of a request: the model's, then the class's.

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
    """Returns copies of the engine's queues."""
    scheduler = core.scheduler
    return Queues(list(scheduler.admission), list(scheduler.running), list(scheduler.swapped))
