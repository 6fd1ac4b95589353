"""Values that a router computes with; `router_settings` declares what users set of them."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from router.output_parsers import reasoning_reader, tool_call_formats
from rpc.http.port_limits import NORMAL, HttpLimits
from rpc.limits.call_bounds import NORMAL_BOUNDS, CallBounds
from rpc.metrics.registry import NO_METRICS, MetricsConfig
from rpc.transport.tls import CLEAR, TlsConfig


class LoggedRequests(enum.Enum):
    """Part of each request that the log contains."""

    NONE = "none"
    ENDS = "ends"
    """A line when a request ends, with its numbers."""
    PROMPTS = "prompts"
    """The text of each prompt as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Values of one router process. `RouterSettings` has checked those that users set."""

    host: str = "127.0.0.1"
    port: int = 50051
    """Port of the gRPC API; 0 picks a free port."""
    http_port: int | None = None
    """Port of OpenAI's HTTP API, on the same host; 0 picks a free port, None serves no HTTP."""
    version: str = "unknown"
    """Version that the HTTP API reports."""
    metrics: MetricsConfig = NO_METRICS
    """Metrics port. The HTTP API serves /metrics as well, unless API keys are required."""
    logged_requests: LoggedRequests = LoggedRequests.NONE
    max_http_body_bytes: int = 8 << 20
    metrics_sources: Mapping[str, str] = field(default_factory=dict)
    """Sockets of other services whose metrics the HTTP API's /metrics includes, by service name."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the HTTP API, such as "https://host"; "*" is any. Empty
    allows none."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that the HTTP API answers in a request's `Host`; see rpc/http/host_check.py."""
    http_limits: HttpLimits = NORMAL
    grpc_bounds: CallBounds = NORMAL_BOUNDS
    """Limits of the gRPC port's connections and calls."""
    refuses_unknown_fields: bool = False
    """True if the HTTP API refuses unknown fields; otherwise a response header lists them, and
    they have no effect."""
    scheduler_addresses: tuple[str, ...] = ("127.0.0.1:50052",)
    """Addresses as "host:port"; requests are spread over all of them."""
    resume_wait_s: float = 30.0
    """Seconds that a request waits for a scheduler after it has lost its own; 0 ends it at once."""
    model_names: tuple[str, ...] = ()
    """Names that requests may use for the model, beside the model's own."""
    tls: TlsConfig = CLEAR
    """Certificates of the public ports and of the channels to the schedulers."""
    api_keys: str | None = None
    """File of the keys that clients must show; with None and no digests, no key is required."""
    api_key_digests: tuple[bytes, ...] = ()
    """SHA-256 of keys without limits, in addition to those in the file."""
    reflection: bool = True
    grace_s: float = 30.0
    """Seconds that running requests may continue after SIGTERM."""
    max_live_requests: int = 4096
    """Most requests that run at a time; further ones get RESOURCE_EXHAUSTED."""
    max_prompt_bytes: int = 4 << 20
    """UTF-8 bytes of the longest text that is tokenised."""
    max_grammar_cpu_s: float = 3.0
    """CPU seconds for compiling a structured output; one that takes more is refused."""
    max_grammar_bytes: int = 192 << 20
    """Bytes of memory for compiling a structured output; one that takes more is refused."""
    max_unread_tokens: int = 16_384
    """Tokens that a client may leave unread before its request is aborted. Each alternative of a
    token's logprobs counts as a token."""
    client_stall_timeout_s: float = 60.0
    """Seconds after which a stream ends whose client reads nothing while output waits for it."""
    seed: int | None = None
    """Seed in [0, 2**64) of the sequence of seeds for requests without one; None is random."""
    tokenizer_threads: int = 2
    trust_tenant_header: bool = False
    """True if metadata `x-signalbox-tenant` names a request's tenant; see tenants.py."""
    tool_call_parser: str = tool_call_formats.AUTO
    """Format of tool calls in a model's text: one of tool_call_formats.CHOICES."""
    reasoning_parser: str = reasoning_reader.AUTO
    """Format of reasoning in a model's text: one of reasoning_reader.CHOICES."""
    chat_template: str | None = None
    """Source text of a chat template that replaces the model's."""
    disable_additional_properties: bool = True
    """True if objects of a JSON schema may have only the keys that it declares; see
    closed_schema.py."""
    model_poll_s: float = 1.0
    """Seconds between two queries of the scheduler for the served model."""

    def __post_init__(self) -> None:
        addresses = self.scheduler_addresses
        if not addresses or len(set(addresses)) < len(addresses) or not all(addresses):
            raise ValueError(f"scheduler addresses are {addresses}; give at least one, each once")
