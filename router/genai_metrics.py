"""OpenTelemetry's own metrics of a generative model's server, told once a request.

Names, units, attributes and buckets are those of its semantic conventions for generative AI.
"""

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import Meter

from router.metrics import Latency

_TO_MINUTES_S = tuple(0.01 * 2**exponent for exponent in range(14))
_UP_TO_A_SECOND_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0)
_TO_SECONDS_S = (*_UP_TO_A_SECOND_S, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class GenAiMetrics:
    """The instruments; those of the API do nothing until an exporter is chosen."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter("signalbox")
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration",
            unit="s",
            description="Of a request, from arrival to its end.",
            explicit_bucket_boundaries_advisory=_TO_MINUTES_S,
        )
        self._first = meter.create_histogram(
            "gen_ai.server.time_to_first_token",
            unit="s",
            description="From arrival to the first token's leaving, of requests that ended well.",
            explicit_bucket_boundaries_advisory=_TO_SECONDS_S,
        )
        self._per_token = meter.create_histogram(
            "gen_ai.server.time_per_output_token",
            unit="s",
            description="Of each token after the first, a request's mean, if it ended well.",
            explicit_bucket_boundaries_advisory=_PER_TOKEN_S,
        )

    def ended(
        self, operation: str, model: str, latency: Latency, duration_ns: int, context: Context
    ) -> None:
        """Takes a request that has ended well; its trace, if it is sampled, is the exemplar."""
        attributes = _attributes(operation, model)
        self._duration.record(duration_ns / 1e9, attributes, context)
        if latency.first_ns is not None:
            self._first.record(latency.first_ns / 1e9, attributes, context)
        if latency.per_token_ns is not None:
            self._per_token.record(latency.per_token_ns / 1e9, attributes, context)

    def failed(
        self, operation: str, model: str, code: str, duration_ns: int, context: Context
    ) -> None:
        """Takes a request that ended with a status code other than OK."""
        attributes = {**_attributes(operation, model), "error.type": code}
        self._duration.record(duration_ns / 1e9, attributes, context)


def _attributes(operation: str, model: str) -> dict[str, str]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "signalbox",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
    }
