"""One request's timeline as data: rows of segments, and events in words."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Value = str | bool | int | float

PHASES = ("queue", "prefill", "preempted", "decode", "failover")
COLOURS = {
    "router": "#8c96a6",
    "queue": "#e0a526",
    "prefill": "#2a9bb8",
    "preempted": "#d1495b",
    "decode": "#4d9b52",
    "failover": "#9b3fa5",
    "fetch": "#6b8e9b",
    "scheduler": "#5f6b7d",
    "step": "#7a86c8",
    "swap": "#d1495b",
    "forward": "#3d6fb6",
    "sample": "#e28743",
    "stage": "#3d6fb6",
}
"""Colour of each kind of segment."""

_PREFIX = "signalbox."
REASONS = {
    "next_step": "the next step",
    "no_worker": "a worker that takes it",
    "tokens": "the token budget",
    "sequences": "a place among the sequences",
    "blocks": "KV blocks",
    "swapped_first": "swapped requests to go first",
    "grammar": "its structured output to be compiled",
    "suspect": "a suspect to compute alone",
    "loading": "its prefix to be fetched",
}
"""Words for the reasons to wait, which explain.proto and attributes of spans name."""
_WORDS = {
    **{f"wait.{name}_s": f"waited for {words}_s" for name, words in REASONS.items()},
    "depth": "behind",
    "time_per_token.mean_s": "per token_s",
    "time_per_token.p99_s": "p99_s",
    "wait_ns": "waits_ns",
    "step_id": "number",
    "boundary_bytes": "passed on_bytes",
    "boundary_ns": "in_ns",
}
"""Words for attributes whose names do not explain themselves."""


MIN_OUTSIDE = 200
"""The time outside the phases is mentioned if it exceeds the whole divided by this."""


class Segment(NamedTuple):
    """A part of a row, in nanoseconds since the drawing's start."""

    start_ns: int
    end_ns: int
    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Segments of one name."""

    label: str
    segments: tuple[Segment, ...]
    indent: int = 0

    @property
    def total_ns(self) -> int:
        return sum(segment.end_ns - segment.start_ns for segment in self.segments)


class Note(NamedTuple):
    """An event, in words."""

    at_ns: int
    what: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The complete drawing of one request."""

    title: str
    lines: tuple[str, ...]
    """Lines below the title."""
    duration_ns: int
    rows: tuple[Row, ...]
    notes: tuple[Note, ...]
    is_error: bool = False


def phase_rows(segments: Iterable[Segment], *, indent: int) -> list[Row]:
    """Returns a row for each kind of phase that occurs."""
    found: dict[str, list[Segment]] = {name: [] for name in PHASES}
    for segment in segments:
        found[segment.kind].append(segment)
    return [Row(name, tuple(parts), indent) for name, parts in found.items() if parts]


def shares(rows: Iterable[Row], *, duration_ns: int) -> str:
    """Returns the total time and each row's share of it, the longest first."""
    named = [(row.label, row.total_ns) for row in sorted(rows, key=lambda row: -row.total_ns)]
    outside_ns = duration_ns - sum(total_ns for _, total_ns in named)
    if named and outside_ns * MIN_OUTSIDE > duration_ns:
        named.append(("outside the scheduler", outside_ns))
    parts = [
        f"{name} {seconds(total_ns)} ({100 * total_ns / max(1, duration_ns):.0f} %)"
        for name, total_ns in named
    ]
    whole = f"{seconds(duration_ns)} in all"
    return f"{whole}: {', '.join(parts)}" if parts else whole


def longest(rows: Iterable[Row]) -> str:
    """Returns the longest segment of the row that took most of the time."""
    top = max(rows, key=lambda row: row.total_ns, default=None)
    if top is None:
        return ""
    segment = max(top.segments, key=lambda segment: segment.end_ns - segment.start_ns)
    return f"the longest: {segment.text}"


def seconds(nanoseconds: float) -> str:
    """Returns a duration with a unit that suits it."""
    if nanoseconds < 1e6:
        return f"{nanoseconds / 1e3:.0f} µs"
    return f"{nanoseconds / 1e6:.1f} ms" if nanoseconds < 1e9 else f"{nanoseconds / 1e9:.3f} s"


def num_bytes(number: float) -> str:
    """Returns a size with a unit that suits it."""
    kib = number / 1024
    return f"{kib:.1f} KiB" if kib < 1024 else f"{kib / 1024:.1f} MiB"


def in_words(attributes: Mapping[str, Value]) -> str:
    """Returns our attributes as text; zero and empty ones are left out."""
    ours = {
        name.removeprefix(_PREFIX): value
        for name, value in attributes.items()
        if name.startswith(_PREFIX) and value
    }
    return ", ".join(_one(name, value) for name, value in ours.items())


def _one(name: str, value: Value) -> str:
    name = _WORDS.get(name, name)
    words = name.replace(".", " ").replace("_", " ")
    if isinstance(value, bool):
        return words.removeprefix("is ")
    if name.endswith("_s"):
        return f"{words[:-2]} {seconds(float(value) * 1e9)}"
    if name.endswith("_ns"):
        return f"{words[:-3]} {seconds(float(value))}"
    if name == "bytes":
        return num_bytes(float(value))
    if name.endswith("_bytes"):
        return f"{words[:-6]} {num_bytes(float(value))}"
    return f"{words} {value}"
