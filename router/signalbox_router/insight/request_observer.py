"""Observes each request from arrival to end: metrics, log lines, and their request ids."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from signalbox_contract.errors import Code
from signalbox_router.insight.genai_metrics import Kind
from signalbox_router.insight.metrics import Ended, Latency, RouterMetrics
from signalbox_router.insight.request_log import RequestLog
from signalbox_router.insight.request_span import RequestSpan, code_of, reason_of
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_router.requests.api_request import ApiRequest, TimeRemaining
from signalbox_router.requests.request_output import End
from signalbox_rpc.telemetry import logs


class Observed:
    """One live request."""

    __slots__ = (
        "_arrived_ns",
        "_log",
        "_metrics",
        "_model",
        "_operation",
        "_request",
        "_span",
    )

    def __init__(
        self,
        metrics: RouterMetrics,
        log: RequestLog,
        *,
        operation: str,
        model: str,
        span: RequestSpan,
        arrived_ns: int,
    ) -> None:
        self._metrics = metrics
        self._log = log
        self._operation = operation
        self._model = model
        self._span = span
        self._arrived_ns = arrived_ns
        self._request: ActiveRequest | None = None

    def begun(self, request_id: str, api_request: ApiRequest) -> None:
        """Sets the request's id for its log lines."""
        logs.begin_request(request_id, self._span.trace_id)
        self._log.begun(api_request)

    def admitted(self, request: ActiveRequest) -> None:
        """Records that the request was sent to a scheduler."""
        self._request = request

    def ended(self, request: ActiveRequest, end: End) -> None:
        duration_ns = self.age_ns
        self._metrics.of_model(self._model).observe_end(
            request,
            end.usage,
            duration_ns=duration_ns,
            trace_id=self._span.trace_id,
        )
        latency = Latency.of(request)
        self._metrics.gen_ai.ended(
            Kind(self._operation, self._model),
            duration_ns=duration_ns,
            first_ns=latency.first_ns,
            per_token_ns=latency.per_token_ns,
            trace_id=self._span.trace_id,
        )
        self._log.ended(request, end, duration_ns=duration_ns)

    def failed(self, code: str, reason: str) -> None:
        """Records that the request ended with another status code than OK."""
        if self._request is None:
            self._metrics.rejected(code, model=self._model)
        self._metrics.gen_ai.ended(
            Kind(self._operation, self._model, code),
            duration_ns=self.age_ns,
            trace_id=self._span.trace_id,
        )
        self._log.failed(code, reason)

    def over(self) -> None:
        """Records the token times of a request that ended in any way."""
        if self._request is not None:
            self._metrics.of_model(self._model).observe_tokens(
                Latency.of(self._request), trace_id=self._span.trace_id
            )

    @property
    def age_ns(self) -> int:
        return time.monotonic_ns() - self._arrived_ns


class Observer:
    """Observes the requests of one router."""

    def __init__(self, metrics: RouterMetrics | None = None, log: RequestLog | None = None) -> None:
        self._metrics = metrics or RouterMetrics()
        self._log = log or RequestLog()

    def unread(self, operation: str, code: Code, reason: str, *, model: str = "") -> None:
        """Counts and logs a call that was refused before it was decoded to a request."""
        self._metrics.rejected(code.name, model=model)
        self._metrics.num_ended[Ended(operation, model, code.name)] += 1
        self._log.failed(code.name, reason)

    @contextmanager
    def request(
        self,
        operation: str,
        *,
        model: str,
        span: RequestSpan,
        arrived_ns: int,
        time_remaining: TimeRemaining,
    ) -> Iterator[Observed]:
        """Observes one request, from its arrival until the block ends.

        Args:
            model: name of the served model. The client's own text would be an unbounded label.
        """
        metrics = self._metrics
        observed = Observed(
            metrics,
            self._log,
            operation=operation,
            model=model,
            span=span,
            arrived_ns=arrived_ns,
        )
        code = Code.OK
        metrics.num_live += 1
        try:
            yield observed
        except BaseException as error:
            code = code_of(error, is_late=time_remaining() == 0)
            observed.failed(code.name, reason_of(error))
            raise
        finally:
            metrics.num_live -= 1
            observed.over()
            metrics.num_ended[Ended(operation, model, code.name)] += 1
