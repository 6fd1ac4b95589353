"""Reads the caller of an HTTP request, and the context of the call, from its headers."""

from dataclasses import replace

from starlette.requests import Request

from signalbox_router.apis.openai.requests.errors import http_status
from signalbox_router.generation.call_context import CallContext
from signalbox_router.insight.request_span import Transport, http_transport
from signalbox_router.limits.tenants import Caller, Tenants
from signalbox_router.requests.session_key import name_in_headers
from signalbox_rpc.telemetry import tracing


class Callers:
    """Identifies the callers of the endpoints."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def identify(self, request: Request) -> Caller:
        address = request.client.host if request.client else ""
        return self._tenants.identify(request.headers.items(), address=address)

    def call_context(self, request: Request, *, operation: str) -> CallContext:
        """Returns the context that the headers give."""
        headers = request.headers
        caller = self.identify(request)
        return CallContext(
            operation=operation,
            transport=transport(request, is_streamed=False),
            parent=tracing.extract(headers.get("traceparent", ""), headers.get("tracestate", "")),
            time_remaining=lambda: None,
            tenant=caller.tenant,
            key=caller.key,
            payer=caller.payer,
            session_name=name_in_headers(headers.raw),
        )


def completed(call_context: CallContext, request: Request, *, streams: bool | None) -> CallContext:
    """Returns the context completed by the body's `stream`."""
    if not streams:
        return call_context
    return replace(call_context, transport=transport(request, is_streamed=True))


def transport(request: Request, *, is_streamed: bool) -> Transport:
    return http_transport(
        method=request.method,
        route=request.url.path,
        is_streamed=is_streamed,
        status_of=http_status,
    )
