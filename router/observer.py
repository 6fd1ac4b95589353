"""Watches each request from its arrival to its end: counts it, logs it, and names its log lines."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from router.admission import Asked, TimeRemaining
from router.metrics import Ended, RouterMetrics
from router.outputs import End
from router.request import GenerationRequest
from router.request_log import RequestLog
from router.tracing import RequestSpan, code_of
from rpc import logs


class Observed:
    """One request, while it lives."""

    __slots__ = ("_arrived_ns", "_log", "_metrics", "_model", "_span", "is_admitted")

    def __init__(
        self,
        metrics: RouterMetrics,
        log: RequestLog,
        *,
        model: str,
        span: RequestSpan,
        arrived_ns: int,
    ) -> None:
        self.is_admitted = False
        """Whether the scheduler was asked."""
        self._metrics = metrics
        self._log = log
        self._model = model
        self._span = span
        self._arrived_ns = arrived_ns

    def begun(self, request_id: str, asked: Asked) -> None:
        """The request has an id, which its log lines show from now on."""
        logs.begin_request(request_id, self._span.trace_id)
        self._log.begun(asked)

    def ended(self, request: GenerationRequest, end: End) -> None:
        """The request has ended well."""
        duration_ns = time.monotonic_ns() - self._arrived_ns
        stats = self._metrics.of_model(self._model)
        stats.observe(request, end, duration_ns, self._span.trace_id)
        self._log.ended(request, end, duration_ns=duration_ns)


class Observer:
    """Watches the requests of one router."""

    def __init__(self, metrics: RouterMetrics | None = None, log: RequestLog | None = None) -> None:
        self._metrics = metrics or RouterMetrics()
        self._log = log or RequestLog()

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
        observed = Observed(metrics, self._log, model=model, span=span, arrived_ns=arrived_ns)
        code = grpc.StatusCode.OK
        metrics.num_live += 1
        try:
            yield observed
        except BaseException as error:
            code = code_of(error, is_late=time_remaining() == 0)
            if not observed.is_admitted:
                metrics.num_rejected[model, code.name] += 1
            self._log.failed(code.name)
            raise
        finally:
            metrics.num_live -= 1
            metrics.num_ended[Ended(operation, model, code.name)] += 1
