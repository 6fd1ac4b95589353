"""Counts what OpenTelemetry's conventions for servers of generative models ask for.

Bounds and attributes are those of the conventions. Names are as Prometheus has them, without a
prefix of ours; the shipped collector (deploy/otel) gives them those of OpenTelemetry.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from signalbox_rpc.metrics.histogram import MS, Histogram
from signalbox_rpc.metrics.sample import Sample, durations, labelled

_DURATION_MS = tuple(10 << exponent for exponent in range(14))
_UP_TO_A_SECOND_MS = (1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000)
_FIRST_MS = (*_UP_TO_A_SECOND_MS, 2500, 5000, 7500, 10_000)
_PER_TOKEN_MS = (10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500)


class Kind(NamedTuple):
    """The attributes of requests that are counted together."""

    operation: str
    model: str
    error: str = ""
    """Status code; empty if the request ended well."""


def _times(bounds_ms: tuple[int, ...]) -> Histogram:
    return Histogram(tuple(bound * MS for bound in bounds_ms))


@dataclass(slots=True)
class _Times:
    """Durations in nanoseconds of the requests of one kind."""

    request: Histogram = field(default_factory=partial(_times, _DURATION_MS))
    first_token: Histogram = field(default_factory=partial(_times, _FIRST_MS))
    per_output_token: Histogram = field(default_factory=partial(_times, _PER_TOKEN_MS))


class GenAiMetrics:
    """The histograms of one router."""

    def __init__(self) -> None:
        self._by_kind: dict[Kind, _Times] = {}

    def ended(
        self,
        kind: Kind,
        *,
        duration_ns: int,
        first_ns: int | None = None,
        per_token_ns: int | None = None,
        trace_id: str = "",
    ) -> None:
        """Counts a request that has ended; the times of tokens are those of one that ended well.

        Args:
            trace_id: of its trace, which is the exemplar; empty if it is not sampled.
        """
        times = self._by_kind.setdefault(kind, _Times())
        times.request.observe(duration_ns, trace_id=trace_id)
        if first_ns is not None:
            times.first_token.observe(first_ns, trace_id=trace_id)
        if per_token_ns is not None:
            times.per_output_token.observe(per_token_ns, trace_id=trace_id)

    def samples(self) -> Iterator[Sample]:
        """Yields what was counted so far."""
        for kind, times in self._by_kind.items():
            found = [
                durations(
                    "gen_ai_server_request_duration_seconds",
                    "From a request's arrival to its end.",
                    times.request,
                    error_type=kind.error,  # for Prometheus an empty label is one that is absent
                )
            ]
            if not kind.error:
                found += [
                    durations(
                        "gen_ai_server_time_to_first_token_seconds",
                        "From arrival to the first token.",
                        times.first_token,
                    ),
                    durations(
                        "gen_ai_server_time_per_output_token_seconds",
                        "A request's mean time between tokens, after the first.",
                        times.per_output_token,
                    ),
                ]
            yield from labelled(
                found,
                gen_ai_operation_name=kind.operation,
                gen_ai_provider_name="signalbox",
                gen_ai_request_model=kind.model,
                gen_ai_response_model=kind.model,
            )
