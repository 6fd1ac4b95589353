"""The context of a call, which its transport gives to the router."""

from dataclasses import dataclass

from opentelemetry.context import Context

from signalbox_router.insight.request_span import Transport
from signalbox_router.limits.api_keys import ApiKey
from signalbox_router.limits.payers import ANYONE, Payer
from signalbox_router.requests.api_request import TimeRemaining

COMPLETION, CHAT, EMBEDDINGS = "text_completion", "chat", "embeddings"
"""The GenAI conventions' names of operations."""
SCORE, CLASSIFY = "score", "classify"
"""Operations that the conventions do not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
