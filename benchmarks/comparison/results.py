"""Results of the comparison: every round's figures, kept as JSON."""

import json
import math
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.comparison.loads import Kind, Load


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
    num_found: int | None = None
    """Prompt tokens that were found in a prefix cache; None if the participant does not tell."""


def machine() -> str:
    """Says where the figures come from."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    memory = psutil.virtual_memory().total / 2**30
    python = platform.python_version()
    return f"{psutil.cpu_count()} cores of {model}, {memory:.0f} GiB, Python {python}"


def version() -> str:
    """Returns the id of the commit that is measured, with "-dirty" if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    ran = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return ran.stdout.strip() or "unknown"


def as_typed(arguments: Sequence[str]) -> str:
    """Returns a command line of Python, without the folders of this machine."""
    return shlex.join(["python", *(Path(one).name if one[:1] == "/" else one for one in arguments)])


def _own_command() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = ["-m", spec.name.removesuffix(".__main__")] if spec else [sys.argv[0]]
    return as_typed([*module, *sys.argv[1:]])


@dataclass(slots=True, kw_only=True)
class Results:
    """All rounds of all participants; a participant's list is in the order of the rounds."""

    loads: list[Load]
    beside: dict[str, str]
    """Each participant's counterpart among ours; empty for ourselves."""
    takes: dict[str, list[str]] = field(default_factory=dict)
    """Names of the loads that each participant is to take."""
    machine: str = field(default_factory=machine)
    version: str = field(default_factory=version)
    command: str = field(default_factory=_own_command)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d", time.gmtime()))
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
    """Seconds of each start; one that is frozen between turns has been started once."""
    is_same_file: bool = False
    """True if the peers served the file that ours did, so that all are of one form."""
    found: str = ""
    """Says who found prompt tokens in a prefix cache that were not to be there; the run fails."""

    def add(self, participant: str, load: str, result: Result) -> None:
        self.of.setdefault(load, {}).setdefault(participant, []).append(result)

    def ratios(
        self, ours: str, theirs: str, load: str, value: Callable[[Result], float]
    ) -> list[float]:
        """Returns one's figure over another's in each round that both have."""
        pairs = zip(self.of[load].get(ours, []), self.of[load].get(theirs, []), strict=False)
        return [value(our) / value(their) for our, their in pairs]


def as_json(results: Results) -> str:
    """Returns all of it, every round's figures included, with five digits."""
    content = asdict(results)
    content["loads"] = [load | {"kind": load["kind"].value} for load in content["loads"]]
    return json.dumps(_short(content), separators=(",", ":")) + "\n"


def from_json(text: str) -> Results:
    """Returns the results that `as_json` wrote."""
    content = json.loads(text)
    content["loads"] = [Load(**load | {"kind": Kind(load["kind"])}) for load in content["loads"]]
    for of_load in content["of"].values():
        for name, runs in of_load.items():
            of_load[name] = [Result(**{key: _read(run[key]) for key in run}) for run in runs]
    return Results(**content)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    if isinstance(value, float):  # JSON has no NaN, which a latency is that nobody measured
        return float(f"{value:.5g}") if math.isfinite(value) else "nan"
    return value


def _read(value: Any) -> Any:
    return float(value) if value == "nan" else value
