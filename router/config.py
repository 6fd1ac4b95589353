"""How a router is set up: where it listens, whom it asks, and what it lets in."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from router import reasoning, tool_formats
from rpc.metrics import NO_METRICS, MetricsConfig
from rpc.tls import CLEAR, TlsConfig


class LoggedRequests(enum.Enum):
    """What the log says of each request."""

    NONE = "none"
    ENDS = "ends"
    """How it ended, in numbers."""
    PROMPTS = "prompts"
    """The prompt's text too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Settings of one router process; refuses values that could not work."""

    host: str = "127.0.0.1"
    port: int = 50051
    """0 picks a free port."""
    http_port: int | None = None
    """Of OpenAI's HTTP API, on the same host; 0 picks a free port, None serves none."""
    version: str = "unknown"
    """What the HTTP API says."""
    metrics: MetricsConfig = NO_METRICS
    """The HTTP API has /metrics as well, unless API keys are asked for."""
    logged_requests: LoggedRequests = LoggedRequests.NONE
    max_http_body_bytes: int = 8 << 20
    metrics_sources: Mapping[str, str] = field(default_factory=dict)
    """Services whose metrics the HTTP API's /metrics shows too, by name, and their sockets."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may call the HTTP API, as "https://host"; "*" is any. Empty: no page may."""
    refuses_unknown_fields: bool = False
    """True if the HTTP API refuses unknown fields; else a header names them, without effect."""
    scheduler_addresses: tuple[str, ...] = ("127.0.0.1:50052",)
    """Each "host:port"; all of them get requests."""
    resume_wait_s: float = 30.0
    """Seconds that a request waits for a scheduler after it has lost its own; 0 ends it at once."""
    model_names: tuple[str, ...] = ()
    """Names that requests may use for the model, beside its own."""
    tls: TlsConfig = CLEAR
    """Of the public ports, and of the channel to the scheduler."""
    api_keys: str | None = None
    """File of the keys that clients must show; None, without digests, asks for none."""
    api_key_digests: tuple[bytes, ...] = ()
    """SHA-256 of keys without limits, beside those of the file."""
    reflection: bool = True
    grace_s: float = 30.0
    """How long requests that run may go on after SIGTERM."""
    max_live_requests: int = 4096
    """Requests beyond it are refused with RESOURCE_EXHAUSTED."""
    max_prompt_bytes: int = 4 << 20
    """Longest text that is tokenised, UTF-8."""
    max_unread_tokens: int = 16_384
    """A request whose client leaves more tokens than this unread is aborted. Each alternative of a
    token's logprobs counts as a token."""
    client_stall_timeout_s: float = 60.0
    """A stream ends whose client takes nothing for so long while something is written for it."""
    seed: int | None = None
    """Seed in [0, 2**64) of the sequence of seeds for requests without one; None is random."""
    tokenizer_threads: int = 2
    trust_tenant_header: bool = False
    """True if metadata `x-signalbox-tenant` names a request's tenant; see tenants.py."""
    tool_call_parser: str = tool_formats.AUTO
    """Format of tool calls in a model's text: one of tool_formats.CHOICES."""
    reasoning_parser: str = reasoning.AUTO
    """Format of reasoning in a model's text: one of reasoning.CHOICES."""
    chat_template: str | None = None
    """Source text of a chat template that replaces the model's."""
    disable_additional_properties: bool = True
    """True if JSON schemas' objects have only the keys that they declare; see closed_schema.py."""
    model_poll_s: float = 1.0
    """Seconds between two queries of the scheduler for the served model."""

    def __post_init__(self) -> None:
        addresses = self.scheduler_addresses
        if not addresses or len(set(addresses)) < len(addresses) or not all(addresses):
            raise ValueError(f"scheduler addresses are {addresses}; give at least one, each once")
        if not 0 <= self.resume_wait_s < math.inf:
            raise ValueError(f"resume_wait is {self.resume_wait_s}; it must be at least 0")
        if self.tool_call_parser not in tool_formats.CHOICES:
            known = ", ".join(tool_formats.CHOICES)
            raise ValueError(f"tool_call_parser is {self.tool_call_parser!r}; use one of {known}")
        if self.reasoning_parser not in reasoning.CHOICES:
            known = ", ".join(reasoning.CHOICES)
            raise ValueError(f"reasoning_parser is {self.reasoning_parser!r}; use one of {known}")
        for name, port in (("port", self.port), ("http_port", self.http_port or 0)):
            if not 0 <= port <= 65_535:
                raise ValueError(f"{name} {port} is not in [0, 65535]")
        _require_positive(
            max_live_requests=self.max_live_requests,
            max_prompt_bytes=self.max_prompt_bytes,
            max_http_body_bytes=self.max_http_body_bytes,
            max_unread_tokens=self.max_unread_tokens,
            client_stall_timeout_s=self.client_stall_timeout_s,
            tokenizer_threads=self.tokenizer_threads,
            model_poll_s=self.model_poll_s,
        )
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed is {self.seed}; it must be in [0, 2**64)")
        if not self.grace_s >= 0:
            raise ValueError(f"grace_s is {self.grace_s}; it cannot be negative")


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}; it must be positive")
