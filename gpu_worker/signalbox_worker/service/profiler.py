"""Takes profiles of a worker that goes on working: one at a time, for a bounded time."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import NamedTuple

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_worker.device.inspection import ProfileOptions
from signalbox_worker.lease.execution_thread import ExecutionThread
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service.metrics import StepCounts

MAX_DURATION_S = 60.0


class Profile(NamedTuple):
    """A finished recording."""

    num_steps: int
    kernel_ns: Mapping[str, int]
    chrome_trace: bytes
    """Gzipped."""


class Profiler:
    """The profiler of one runner."""

    def __init__(self, runner: Runner, thread: ExecutionThread, steps: StepCounts) -> None:
        self._runner = runner
        self._thread = thread
        self._steps = steps
        self._is_recording = False

    async def record(self, options: ProfileOptions) -> Profile:
        """Records for the given time. Raises RpcError if the runner cannot be profiled."""
        if not 0 < options.duration_s <= MAX_DURATION_S:
            raise InvalidArgument(
                "duration_ns", int(options.duration_s * 1e9), f"in (0, {MAX_DURATION_S:.0f}e9]"
            )
        if self._is_recording:
            raise FailedPrecondition("another profile is being taken; wait for its end")
        self._is_recording = True
        enough = asyncio.Event()
        # A task of its own, so that a recording ends even if its caller has left.
        task = asyncio.create_task(self._record(options, enough))
        try:
            return await asyncio.shield(task)
        finally:
            enough.set()

    async def _record(self, options: ProfileOptions, enough: asyncio.Event) -> Profile:
        try:
            recording = await self._thread.submit(lambda: self._runner.begin_recording(options))
            first_step = self._steps.num_steps
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(enough.wait(), options.duration_s)
            await self._thread.submit(recording.end)
            num_steps = self._steps.num_steps - first_step
            if enough.is_set():  # its caller has left
                return Profile(num_steps, {}, b"")
            trace = await asyncio.to_thread(recording.chrome_trace)
            return Profile(num_steps, recording.kernel_ns, trace)
        finally:
            self._is_recording = False
