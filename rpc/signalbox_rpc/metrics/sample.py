"""One count as the part that owns it yields it, from its method `samples()`.

Metrics, GetStats, dumps and `signalbox top --json` show every sample in one loop, so a new count
needs no other place; the screen of `top` and the log show those that they name. What a count means
is said here alone: in its HELP text.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from signalbox_rpc.metrics.histogram import Histogram

PER_NS = 1e-9


Kind = Literal["gauge", "counter", "histogram"]
"""A number that rises and falls, one that only grows, and counts of values in buckets."""


class Sample(NamedTuple):
    """A value of a metric. All samples of a name have the same kind, meaning and label names."""

    kind: Kind
    name: str
    """Name without a prefix, and without the suffix of a counter."""
    meaning: str
    value: float | Histogram
    labels: dict[str, str]
    unit: float = 1.0
    """Unit of a histogram's bounds and values in that of the metric."""


def gauge(name: str, meaning: str, value: float, **labels: str) -> Sample:
    return Sample("gauge", name, meaning, value, labels)


def counter(name: str, meaning: str, value: float, **labels: str) -> Sample:
    return Sample("counter", name, meaning, value, labels)


def gauges(
    name: str, meaning: str, values: Mapping[str, float], *, by: str, **labels: str
) -> Iterator[Sample]:
    """Yields a gauge for each value of the label `by`."""
    for one, value in values.items():
        yield gauge(name, meaning, value, **labels, **{by: one})


def counters(
    name: str, meaning: str, values: Mapping[str, float], *, by: str, **labels: str
) -> Iterator[Sample]:
    """Yields a counter for each value of the label `by`."""
    for one, value in values.items():
        yield counter(name, meaning, value, **labels, **{by: one})


def histogram(name: str, meaning: str, values: Histogram, **labels: str) -> Sample:
    return Sample("histogram", name, meaning, values, labels)


def durations(name: str, meaning: str, values_ns: Histogram, **labels: str) -> Sample:
    """Returns a histogram of nanoseconds whose metric is in seconds."""
    return Sample("histogram", name, meaning, values_ns, labels, PER_NS)


def labelled(samples: Iterable[Sample], **labels: str) -> Iterator[Sample]:
    """Yields samples with labels of the whole that the part belongs to."""
    for sample in samples:
        yield sample._replace(labels={**labels, **sample.labels})
