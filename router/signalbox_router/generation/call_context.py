"""The context of a call, which its transport gives to the router."""

from dataclasses import dataclass, field
from typing import NamedTuple

from opentelemetry.context import Context

from signalbox_router.insight.request_span import RequestSpan, Transport
from signalbox_router.limits.api_keys import ApiKey
from signalbox_router.limits.payers import ANYONE, Payer
from signalbox_router.requests.api_request import TimeRemaining

COMPLETION, CHAT, EMBEDDINGS = "text_completion", "chat", "embeddings"
"""The GenAI conventions' names of operations."""
SCORE, CLASSIFY = "score", "classify"
"""Operations that the conventions do not name."""


class Begun(NamedTuple):
    """Data of a request that waited for its model before it was decoded."""

    span: RequestSpan
    arrived_ns: int
    """Time on the clock of `now_ns`."""
    waited_ns: int = 0
    """Time until its model was loaded."""


@dataclass(slots=True, kw_only=True)
class CallContext:
    """Properties of a call that its transport knows, beside the request's content."""

    operation: str
    """One of the names above."""
    transport: Transport
    parent: Context
    """Trace context of the caller."""
    time_remaining: TimeRemaining
    tenant: str = ""
    """Owner of the request; empty if clients name no tenants."""
    key: ApiKey | None = None
    """API key of the caller, if keys are required."""
    payer: Payer = ANYONE
    """Payer of the request's work, in the router and at the scheduler."""
    begun: Begun | None = None
    """Set while the call, or the first request of it, has waited for its model."""
    session_name: str = field(default="", repr=False)
    """Client's name for the session, if a header has it; see `ApiRequest.session_name`."""
