"""What the router counts of requests, as their clients see them, and shows Prometheus.

Everything is counted once a request, when it ends: nothing is added to the way of a token. As with
vLLM, the times of tokens are those of every request that got any, however it ended: clients who
leave because tokens are slow would else make them look fast. Lengths, and the time to the end, are
of requests that ended well.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from router.outputs import Usage
from router.request import GenerationRequest
from rpc.histogram import Histogram, times, token_counts
from rpc.metrics import PER_NS, Families

N_BOUNDS = (1, 2, 5, 10, 20, 64)


class Ended(NamedTuple):
    """How a request ended: what was asked for, of which model, and the status code."""

    operation: str
    model: str
    code: str


class Latency(NamedTuple):
    """How long a client waited for tokens."""

    first_ns: int | None
    """From arrival to the first, if there was one."""
    per_token_ns: int | None
    """Mean of the later ones, if there were any."""

    @classmethod
    def of(cls, request: GenerationRequest) -> "Latency":
        """Takes the tokens that have left so far; what their client still waits for is no time."""
        first_ns = request.time_to_first_token_ns
        num_later = request.longest - 1
        if first_ns is None or num_later <= 0:
            return cls(first_ns, None)
        return cls(first_ns, (request.time_to_last_token_ns - first_ns) // num_later)


@dataclass(slots=True)
class ModelStats:
    """Of the requests of one model."""

    num_finished: Counter[str] = field(default_factory=Counter)
    """By finish reason of the first sequence."""
    time_to_first_token_ns: Histogram = field(default_factory=times)
    time_per_output_token_ns: Histogram = field(default_factory=times)
    duration_ns: Histogram = field(default_factory=times)
    prompt_tokens: Histogram = field(default_factory=token_counts)
    generation_tokens: Histogram = field(default_factory=token_counts)
    longest_generation: Histogram = field(default_factory=token_counts)
    """Tokens of each request's longest sequence."""
    asked_n: Histogram = field(default_factory=lambda: Histogram(N_BOUNDS))
    asked_max_tokens: Histogram = field(default_factory=token_counts)
    """max_tokens of each request, the default for requests that set none."""

    def observe_end(
        self,
        request: GenerationRequest,
        usage: Usage,
        *,
        duration_ns: int,
        trace_id: str,
    ) -> None:
        """Takes a request that has ended well; the trace's id is "" unless it is sampled."""
        reason = request.finish_reason
        self.num_finished[reason.name.lower() if reason else "unknown"] += 1
        self.asked_n.observe(request.params.n)
        self.asked_max_tokens.observe(request.params.max_tokens)
        self.prompt_tokens.observe(usage.prompt_tokens)
        self.generation_tokens.observe(usage.completion_tokens)
        self.longest_generation.observe(request.longest)
        self.duration_ns.observe(duration_ns, trace_id=trace_id)

    def observe_tokens(self, latency: Latency, *, trace_id: str) -> None:
        """Takes a request that has ended in any way."""
        if latency.first_ns is not None:
            self.time_to_first_token_ns.observe(latency.first_ns, trace_id=trace_id)
        if latency.per_token_ns is not None:
            self.time_per_output_token_ns.observe(latency.per_token_ns, trace_id=trace_id)


@dataclass(slots=True)
class RouterMetrics:
    """The counts of one router."""

    by_model: dict[str, ModelStats] = field(default_factory=dict)
    num_ended: Counter[Ended] = field(default_factory=Counter)
    num_rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By model and status code, of those that never reached the scheduler."""
    num_live: int = 0

    def rejected(self, code: str, *, model: str = "") -> None:
        """Counts a request that never reached the scheduler; "" is no model in particular."""
        self.num_rejected[model, code] += 1

    def of_model(self, name: str) -> ModelStats:
        return self.by_model.setdefault(name, ModelStats())

    def read(self, families: Families) -> None:
        """Adds what was counted so far."""
        families.gauge("router_requests", "Requests that live in this router.", self.num_live)
        for ended, number in self.num_ended.items():
            families.counter(
                "requests",
                "Requests that have ended, by status code.",
                number,
                model_name=ended.model,
                operation=ended.operation,
                code=ended.code,
            )
        for (model, code), number in self.num_rejected.items():
            families.counter(
                "admission_rejections",
                "Requests that were refused on arrival, by status code.",
                number,
                model_name=model,
                reason=code.lower(),
            )
        for model, stats in self.by_model.items():
            _add_model(stats, families, model)


def _add_model(stats: ModelStats, families: Families, model: str) -> None:
    for reason, number in stats.num_finished.items():
        families.counter(
            "request_success",
            "Requests that have ended well, by finish reason.",
            number,
            model_name=model,
            finished_reason=reason,
        )
    for name, meaning, values in (
        (
            "time_to_first_token_seconds",
            "From arrival, of each request that got one.",
            stats.time_to_first_token_ns,
        ),
        (
            "request_time_per_output_token_seconds",
            "Each request's mean, without its first token.",
            stats.time_per_output_token_ns,
        ),
        ("e2e_request_latency_seconds", "From arrival to the end.", stats.duration_ns),
    ):
        families.histogram(name, meaning, values, scale=PER_NS, model_name=model)
    for name, meaning, values in (
        ("request_prompt_tokens", "Tokens of a prompt.", stats.prompt_tokens),
        ("request_generation_tokens", "Tokens of an answer.", stats.generation_tokens),
        (
            "request_max_num_generation_tokens",
            "Tokens of an answer's longest sequence.",
            stats.longest_generation,
        ),
        ("request_params_n", "Sequences that a request asked for.", stats.asked_n),
        (
            "request_params_max_tokens",
            "Most tokens of a sequence that a request asked for, or its default.",
            stats.asked_max_tokens,
        ),
    ):
        families.histogram(name, meaning, values, model_name=model)
