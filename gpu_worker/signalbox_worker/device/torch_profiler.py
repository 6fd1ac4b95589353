"""Records what PyTorch, and our named ranges, do on the execution thread and the device.

The names of `spans` are what a trace is read by: native code is one range to the profiler.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from signalbox_worker.device import spans
from signalbox_worker.device.inspection import ProfileOptions


class TorchRecording:
    """A recording in progress. It begins and ends on the execution thread."""

    def __init__(self, options: ProfileOptions, device: torch.device) -> None:
        self.kernel_ns: Mapping[str, int] = {}
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            record_shapes=options.record_shapes,
            with_stack=options.with_stack,
        )
        self._profile.start()
        spans.begin(record_function)

    def end(self) -> None:
        spans.end(record_function)
        self._profile.stop()

    def chrome_trace(self) -> bytes:
        """Returns the recording, gzipped; to be called after `end`, on any thread."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            self._profile.export_chrome_trace(str(path))
            return path.read_bytes()
