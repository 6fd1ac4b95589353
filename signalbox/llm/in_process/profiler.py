"""Profiles of the worker in this process, one at a time, each written to a file."""

import logging
import os
import time
from pathlib import Path

from signalbox.llm.in_process.local_worker import LocalWorker
from signalbox_worker.device.inspection import ProfileOptions, Recording

logger = logging.getLogger(__name__)

UNBOUNDED = ProfileOptions(duration_s=float("inf"))


class LocalProfiler:
    """Owns the running recording and its folder."""

    def __init__(self, worker: LocalWorker, folder: str | None) -> None:
        self._worker = worker
        self._folder = folder
        self._recording: Recording | None = None
        self._prefix = ""

    def start(self, prefix: str | None) -> None:
        """Begins to record. Raises RuntimeError without a folder, or while a recording goes on."""
        if self._folder is None:
            raise RuntimeError(
                "no profile is taken without a folder for it: "
                'profiler_config={"torch_profiler_dir": FOLDER}'
            )
        if self._recording is not None:
            raise RuntimeError("a profile is being taken already; stop_profile ends it")
        self._recording = self._worker.begin_recording(UNBOUNDED)
        self._prefix = prefix or "signalbox"

    def stop(self) -> Path:
        """Ends the recording and returns its file. Raises RuntimeError if nothing is recorded."""
        if self._recording is None or self._folder is None:
            raise RuntimeError("no profile is being taken; start_profile begins one")
        recording, self._recording = self._recording, None
        trace = self._worker.end_recording(recording)
        folder = Path(self._folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._prefix}.{os.getpid()}.{time.time_ns()}.trace.json.gz"
        path.write_bytes(trace)
        logger.info("profile written: %s", path)
        return path

    def close(self) -> None:
        """Ends a running recording, and drops it."""
        if self._recording is not None:
            recording, self._recording = self._recording, None
            self._worker.end_recording(recording)
