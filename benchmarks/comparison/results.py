"""Results of the comparison: every round's figures, kept as JSON."""

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from benchmarks.comparison.loads import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One participant under one load, in one round."""

    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    between_p50_ms: float
    between_p99_ms: float
    cpu_ms_per_token: dict[str, float]
    peak_rss_mib: float


@dataclass(slots=True, kw_only=True)
class Results:
    """All rounds of all participants; a participant's list is in the order of the rounds."""

    loads: list[Load]
    beside: dict[str, str]
    """Each participant's counterpart among ours; empty for ourselves."""
    of: dict[str, dict[str, list[Result]]] = field(default_factory=dict)
    """Results by load and participant."""
    failures: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    builds: dict[str, str] = field(default_factory=dict)
    """Version and instruction sets of each participant."""
    bounds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Most tokens/s that the machine could give, by load and participant of ours."""
    rates: str = ""
    """The machine's rates behind the bounds, or why there are none."""
    start_to_ready_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, participant: str, load: str, result: Result) -> None:
        self.of.setdefault(load, {}).setdefault(participant, []).append(result)

    def ratios(self, participant: str, load: str, value: Callable[[Result], float]) -> list[float]:
        """Returns ours over theirs in each round that both have; empty for ourselves."""
        ours = self.of[load].get(self.beside[participant], [])
        pairs = zip(ours, self.of[load][participant], strict=False)
        return [value(our) / value(their) for our, their in pairs]


def as_json(results: Results) -> str:
    rounds = {
        load: {name: [asdict(run) for run in runs] for name, runs in of_load.items()}
        for load, of_load in results.of.items()
    }
    content = {
        "machine": machine(),
        "rounds": rounds,
        "start_to_ready_s": results.start_to_ready_s,
        "failures": results.failures,
        "notes": results.notes,
        "builds": results.builds,
        "bounds": results.bounds,
        "rates": results.rates,
    }
    return json.dumps(content, indent=1)


def machine() -> str:
    """Says where the figures come from."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    memory = psutil.virtual_memory().total / 2**30
    python = platform.python_version()
    return f"{psutil.cpu_count()} cores of {model}, {memory:.0f} GiB, Python {python}"
