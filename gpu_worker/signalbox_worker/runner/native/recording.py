"""Records the spans of native steps, and the time of each kind of kernel in them."""

import gzip
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from signalbox_contract.errors import Unimplemented
from signalbox_kernels.program import Program
from signalbox_worker.device import spans
from signalbox_worker.device.inspection import ProfileOptions


class NativeRecording:
    """A recording in progress; satisfies `Recording`. It begins and ends on the execution thread.

    Its trace is in Chrome's format: one event with its duration, in µs, for each span.
    """

    def __init__(self, options: ProfileOptions, program: Program) -> None:
        """Raises Unimplemented for what PyTorch's profiler alone can record."""
        if options.record_shapes or options.with_stack:
            raise Unimplemented(
                "a native program has neither operand shapes nor call stacks to record; leave them"
                " out, or serve with --cpu-backend torch"
            )
        self.kernel_ns: Mapping[str, int] = {}
        self._program = program
        self._events: list[dict[str, object]] = []
        program.begin_profile()
        spans.begin(self._span)

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._events.append(
                {
                    "ph": "X",
                    "cat": "step",
                    "name": name,
                    "pid": os.getpid(),
                    "tid": threading.get_native_id(),
                    "ts": start / 1e3,
                    "dur": (time.perf_counter_ns() - start) / 1e3,
                }
            )

    def end(self) -> None:
        spans.end(self._span)
        self.kernel_ns = self._program.end_profile()

    def chrome_trace(self) -> bytes:
        """Returns the recording, gzipped; to be called after `end`, on any thread."""
        trace = {"displayTimeUnit": "ms", "traceEvents": self._events}
        return gzip.compress(json.dumps(trace).encode())
