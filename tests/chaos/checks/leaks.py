"""Finds what grows: samples of processes over a run, whose ends should not be above their middles.

A run's first part fills caches and pools, so it is left out. What is left is cut in two: a leak is
what has more in the second half than in the first by more than noise. Medians, so that a moment of
load decides nothing.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import psutil

MIN_SAMPLES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one process holds at one time."""

    rss_mib: float
    open_files: float
    """File descriptors of any kind."""
    threads: float
    tasks: float = 0.0
    """Of asyncio, if the process tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """Growth that is no leak: part of what there was, and so much more."""

    share: float
    extra: float


SLACK = {
    "rss_mib": Slack(share=0.05, extra=2.0),
    "open_files": Slack(share=0.1, extra=3.0),
    "threads": Slack(share=0.1, extra=1.0),
    "tasks": Slack(share=0.2, extra=8.0),
}


def sample_of(pid: int, *, metrics: str = "") -> Sample:
    """`metrics` is what the process shows Prometheus."""
    tasks = re.search(r"^asyncio_tasks (\S+)$", metrics, re.MULTILINE)
    process = psutil.Process(pid)
    with process.oneshot():
        return Sample(
            rss_mib=process.memory_info().rss / (1 << 20),
            open_files=process.num_fds(),
            threads=process.num_threads(),
            tasks=float(tasks[1]) if tasks else 0.0,
        )


def find_leaks(samples: Mapping[str, Sequence[Sample]]) -> list[str]:
    """Returns a line for everything that grew; raises ValueError if there is too little to say."""
    found = []
    for process, series in samples.items():
        if len(series) < MIN_SAMPLES:
            raise ValueError(f"{process}: {len(series)} samples; {MIN_SAMPLES} are needed")
        settled = series[len(series) // 3 :]
        for column in fields(Sample):
            values = [getattr(sample, column.name) for sample in settled]
            before = statistics.median(values[: len(values) // 2])
            after = statistics.median(values[len(values) // 2 :])
            slack = SLACK[column.name]
            if after > before * (1 + slack.share) + slack.extra:
                found.append(f"{process}: {column.name} went from {before:g} to {after:g}")
    return found
