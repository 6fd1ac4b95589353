"""Watches each request from its arrival to its end: counts it, logs it, and names its log lines."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from router.admission import Asked, TimeRemaining
from router.genai_metrics import GenAiMetrics
from router.metrics import Ended, Latency, RouterMetrics
from router.outputs import End
from router.request import GenerationRequest
from router.request_log import RequestLog
from router.tracing import RequestSpan, code_of, reason_of
from rpc import logs


class Observed:
    """One request, while it lives."""

    __slots__ = (
        "_arrived_ns",
        "_genai",
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
        genai: GenAiMetrics,
        log: RequestLog,
        *,
        operation: str,
        model: str,
        span: RequestSpan,
        arrived_ns: int,
    ) -> None:
        self._metrics = metrics
        self._genai = genai
        self._log = log
        self._operation = operation
        self._model = model
        self._span = span
        self._arrived_ns = arrived_ns
        self._request: GenerationRequest | None = None

    def begun(self, request_id: str, asked: Asked) -> None:
        """The request has an id, which its log lines show from now on."""
        logs.begin_request(request_id, self._span.trace_id)
        self._log.begun(asked)

    def admitted(self, request: GenerationRequest) -> None:
        """The scheduler was asked."""
        self._request = request

    def ended(self, request: GenerationRequest, end: End) -> None:
        """The request has ended well."""
        duration_ns = self.age_ns
        self._metrics.of_model(self._model).observe_end(
            request,
            end.usage,
            duration_ns=duration_ns,
            trace_id=self._span.trace_id,
        )
        latency = Latency.of(request)
        self._genai.ended(self._operation, self._model, latency, duration_ns, self._span.context)
        self._log.ended(request, end, duration_ns=duration_ns)

    def failed(self, code: str, reason: str) -> None:
        """The request has ended with another status code than OK."""
        if self._request is None:
            self._metrics.rejected(code, model=self._model)
        self._genai.failed(self._operation, self._model, code, self.age_ns, self._span.context)
        self._log.failed(code, reason)

    def over(self) -> None:
        """The request has ended, in whatever way."""
        if self._request is not None:
            self._metrics.of_model(self._model).observe_tokens(
                Latency.of(self._request), trace_id=self._span.trace_id
            )

    @property
    def age_ns(self) -> int:
        return time.monotonic_ns() - self._arrived_ns


class Observer:
    """Watches the requests of one router."""

    def __init__(
        self,
        metrics: RouterMetrics | None = None,
        log: RequestLog | None = None,
        genai: GenAiMetrics | None = None,
    ) -> None:
        self._metrics = metrics or RouterMetrics()
        self._log = log or RequestLog()
        self._genai = genai or GenAiMetrics()

    def unread(
        self, operation: str, code: grpc.StatusCode, reason: str, *, model: str = ""
    ) -> None:
        """Counts and logs a call that was refused before a request was made of it."""
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
        """Watches one request, from its arrival until the block ends.

        Args:
            model: the served one; what a client asks for could be anything, and would be a label.
        """
        metrics = self._metrics
        observed = Observed(
            metrics,
            self._genai,
            self._log,
            operation=operation,
            model=model,
            span=span,
            arrived_ns=arrived_ns,
        )
        code = grpc.StatusCode.OK
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
