"""Lines of `signalbox top` for the parts that a worker may have: which samples, in which words.

What is 0 since the worker joined is left out, so a worker without a part has no line of it. The
JSON object of `--json` has every sample.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from signalbox.commands.inspect.readings import Quantiles, Readings


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a line: words around it, the name of its samples, and their labels."""

    words: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    share_of: str = ""
    """Name of the samples of which it is shown as a share; empty for the number itself."""


LINES: dict[str, tuple[Number, ...]] = {
    "{tier}": (
        Number("hit rate so far {}", "kv_store_hits", share_of="kv_store_queries"),
        Number("{} in", "kv_store_bytes", {"direction": "in"}),
        Number("{} out", "kv_store_bytes", {"direction": "out"}),
        Number("{} failed", "kv_store_failures"),
        Number("{} late", "kv_transfer_timeouts"),
        Number("{} loading", "num_requests_loading"),
    ),
    "migrated so far": (
        Number("{} out", "migrations", {"result": "out"}),
        Number("{} in", "migrations", {"result": "in"}),
        Number("{} aborted", "migrations", {"result": "aborted"}),
        Number("paused {}", "migration_pause_seconds"),
    ),
}
"""Numbers by title; a title that names a label has a line for each of its values."""


def part_lines(samples: Readings) -> list[str]:
    """Returns the lines that have a number to show."""
    lines = []
    for title, numbers in LINES.items():
        label = title.strip("{}") if title.startswith("{") else ""
        found = [one for number in numbers for one in samples.find(number.name)]
        for value in dict.fromkeys(one.labels.get(label, "") for one in found):
            labels = {label: value} if label else {}
            texts = filter(None, [_text(number, samples, labels) for number in numbers])
            if text := "  ".join(texts):
                lines.append(f"{title.format(**labels)}: {text}")
    return lines


def _text(number: Number, samples: Readings, labels: dict[str, str]) -> str:
    found = samples.find(number.name, **labels, **number.labels)
    whole = samples.total(number.share_of or number.name, **labels, **number.labels)
    if not whole:
        return ""
    value = sum(one.value for one in found)
    if number.share_of:
        text = f"{value / whole:.0%}"
    elif number.name.endswith("_bytes"):
        text = f"{sum(one.per_s or 0.0 for one in found) / 1e6:,.1f} MB/s"
    elif number.name.endswith("_seconds"):
        text = quantiles_text(found.quantiles(number.name))
    else:
        text = f"{value:,.0f}"
    return number.words.format(text) if text else ""


def quantiles_text(values: Quantiles) -> str:
    """Returns the median and the 99th percentile; empty while there are none."""
    if values.p50_s is None or values.p99_s is None:
        return ""
    return f"{time_text(values.p50_s)} (p99 {time_text(values.p99_s)})"


def time_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
