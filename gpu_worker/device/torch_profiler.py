"""Records what PyTorch, and our named ranges, do on the execution thread and the device.

The names that `span` gives are what a trace is read by: native code is one range to the profiler.
"""

import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import ClassVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gpu_worker.batch.runner_protocol import ProfileOptions
from signalbox_kernels.program import Program

_NOTHING = nullcontext()


def span(name: str) -> AbstractContextManager[object]:
    """Returns a context whose work appears under a name in profiles; it costs nothing without
    one."""
    return record_function(name) if TorchRecording.num_running else _NOTHING


class TorchRecording:
    """A recording in progress. It begins and ends on the execution thread."""

    num_running: ClassVar[int] = 0

    def __init__(
        self, options: ProfileOptions, device: torch.device, program: Program | None = None
    ) -> None:
        self.kernel_ns: Mapping[str, int] = {}
        self._program = program
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            record_shapes=options.record_shapes,
            with_stack=options.with_stack,
        )
        self._profile.start()
        if program is not None:
            program.begin_profile()
        TorchRecording.num_running += 1

    def end(self) -> None:
        TorchRecording.num_running -= 1
        if self._program is not None:
            self.kernel_ns = self._program.end_profile()
        self._profile.stop()

    def chrome_trace(self) -> bytes:
        """Returns the recording, gzipped; to be called after `end`, on any thread."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            self._profile.export_chrome_trace(str(path))
            return path.read_bytes()
