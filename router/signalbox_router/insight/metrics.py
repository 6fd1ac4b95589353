"""Counts requests from the client's point of view and exposes them to Prometheus.

A request is counted once, when it ends, so tokens cost nothing. As in vLLM, the times of tokens
include every request that got a token, however it ended: otherwise slow tokens that make clients
leave would look fast. Lengths and total times are of requests that succeeded.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from signalbox_contract.updates import Usage
from signalbox_router.insight.genai_metrics import GenAiMetrics
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_rpc.metrics.histogram import Histogram, times, token_counts
from signalbox_rpc.metrics.sample import (
    Sample,
    counter,
    counters,
    durations,
    gauge,
    histogram,
    labelled,
)

N_BOUNDS = (1, 2, 5, 10, 20, 64)


class Ended(NamedTuple):
    """Labels of a request's end: operation, model and status code."""

    operation: str
    model: str
    code: str


class Latency(NamedTuple):
    """Times that a client waited for tokens."""

    first_ns: int | None
    """Nanoseconds from arrival to the first token; None if there was none."""
    per_token_ns: int | None
    """Mean nanoseconds of each later token; None if there were none."""

    @classmethod
    def of(cls, request: ActiveRequest) -> "Latency":
        """Measures the tokens that were sent so far; the time since the last one is not counted."""
        first_ns = request.time_to_first_token_ns
        num_later = request.longest - 1
        if first_ns is None or num_later <= 0:
            return cls(first_ns, None)
        return cls(first_ns, (request.time_to_last_token_ns - first_ns) // num_later)


@dataclass(slots=True)
class ModelStats:
    """Counts of the requests for one model."""

    num_finished: Counter[str] = field(default_factory=Counter)
    """Requests by the finish reason of their first sequence."""
    time_to_first_token_ns: Histogram = field(default_factory=times)
    time_per_output_token_ns: Histogram = field(default_factory=times)
    duration_ns: Histogram = field(default_factory=times)
    prompt_tokens: Histogram = field(default_factory=token_counts)
    generation_tokens: Histogram = field(default_factory=token_counts)
    longest_generation: Histogram = field(default_factory=token_counts)
    """Tokens of each request's longest sequence."""
    asked_n: Histogram = field(default_factory=lambda: Histogram(N_BOUNDS))
    asked_max_tokens: Histogram = field(default_factory=token_counts)
    """max_tokens of each request; the default for requests that set none."""

    def samples(self) -> Iterator[Sample]:
        yield from counters(
            "request_success",
            "Requests that have ended well, by finish reason.",
            self.num_finished,
            by="finished_reason",
        )
        yield durations(
            "time_to_first_token_seconds",
            "From arrival, of each request that got one.",
            self.time_to_first_token_ns,
        )
        yield durations(
            "request_time_per_output_token_seconds",
            "Each request's mean, without its first token.",
            self.time_per_output_token_ns,
        )
        yield durations("e2e_request_latency_seconds", "From arrival to the end.", self.duration_ns)
        for name, meaning, values in (
            ("prompt_tokens", "Tokens of a prompt.", self.prompt_tokens),
            ("generation_tokens", "Tokens of an answer.", self.generation_tokens),
            (
                "max_num_generation_tokens",
                "Tokens of an answer's longest sequence.",
                self.longest_generation,
            ),
            ("params_n", "Sequences that a request asked for.", self.asked_n),
            (
                "params_max_tokens",
                "Most tokens of a sequence that a request asked for, or its default.",
                self.asked_max_tokens,
            ),
        ):
            yield histogram(f"request_{name}", meaning, values)

    def observe_end(
        self,
        request: ActiveRequest,
        usage: Usage,
        *,
        duration_ns: int,
        trace_id: str,
    ) -> None:
        """Counts a request that succeeded; `trace_id` is "" unless the trace is sampled."""
        reason = request.finish_reason
        self.num_finished[reason.name.lower() if reason else "unknown"] += 1
        self.asked_n.observe(request.params.n)
        self.asked_max_tokens.observe(request.params.max_tokens)
        self.prompt_tokens.observe(usage.prompt_tokens)
        self.generation_tokens.observe(usage.completion_tokens)
        self.longest_generation.observe(request.longest)
        self.duration_ns.observe(duration_ns, trace_id=trace_id)

    def observe_tokens(self, latency: Latency, *, trace_id: str) -> None:
        """Counts the token times of a request that has ended in any way."""
        if latency.first_ns is not None:
            self.time_to_first_token_ns.observe(latency.first_ns, trace_id=trace_id)
        if latency.per_token_ns is not None:
            self.time_per_output_token_ns.observe(latency.per_token_ns, trace_id=trace_id)


@dataclass(slots=True)
class RouterMetrics:
    """All counts of one router."""

    by_model: dict[str, ModelStats] = field(default_factory=dict)
    num_ended: Counter[Ended] = field(default_factory=Counter)
    num_rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests that never reached a scheduler, by model and status code."""
    gen_ai: GenAiMetrics = field(default_factory=GenAiMetrics)
    num_live: int = 0

    def rejected(self, code: str, *, model: str = "") -> None:
        """Counts a request that never reached a scheduler; an empty `model` is unknown."""
        self.num_rejected[model, code] += 1

    def of_model(self, name: str) -> ModelStats:
        return self.by_model.setdefault(name, ModelStats())

    def samples(self) -> Iterator[Sample]:
        """Yields the counts so far."""
        yield gauge("router_requests", "Requests that live in this router.", self.num_live)
        for ended, number in self.num_ended.items():
            yield counter(
                "requests",
                "Requests that have ended, by status code.",
                number,
                model_name=ended.model,
                operation=ended.operation,
                code=ended.code,
            )
        for (model, code), number in self.num_rejected.items():
            yield counter(
                "admission_rejections",
                "Requests that were refused on arrival, by status code.",
                number,
                model_name=model,
                reason=code.lower(),
            )
        for model, stats in self.by_model.items():
            yield from labelled(stats.samples(), model_name=model)
        yield from self.gen_ai.samples()
