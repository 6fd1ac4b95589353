"""The id of a sampled trace, as log lines and exemplars name it: 32 hex digits, or ""."""

import re

from opentelemetry import trace
from opentelemetry.context import Context

_TRACEPARENT = re.compile(
    r"[0-9a-f]{2}-(?P<trace_id>[0-9a-f]{32})-[0-9a-f]{16}-(?P<flags>[0-9a-f]{2})"
)
_SAMPLED = 1


def of_context(context: Context | None = None) -> str:
    """Returns the trace of a context, by default the current one; "" unless it is sampled."""
    span = trace.get_current_span(context).get_span_context()
    is_sampled = span.is_valid and span.trace_flags.sampled
    return f"{span.trace_id:032x}" if is_sampled else ""


def of_traceparent(traceparent: str) -> str:
    """Returns the trace that a W3C traceparent names; "" unless it is sampled."""
    found = _TRACEPARENT.match(traceparent)
    return found["trace_id"] if found and int(found["flags"], 16) & _SAMPLED else ""
