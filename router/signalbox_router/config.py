"""Settings of the router, and values that no user sets."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from signalbox_router.parsers import reasoning_formats, tool_call_formats
from signalbox_router.prompt.chat.known_templates import known_templates
from signalbox_rpc.settings.addresses import Address, Addresses, Port
from signalbox_rpc.settings.quantities import joined, texts
from signalbox_rpc.settings.secrets import Secrets
from signalbox_rpc.settings.service_settings import (
    FilePath,
    HostSettings,
    NameSettings,
    Settings,
    SettingsGroup,
    TelemetrySettings,
    TlsSettings,
)
from signalbox_rpc.transport.tls import is_loopback


class LoggedRequests(StrEnum):
    """Part of each request that the log contains."""

    NONE = "none"
    ENDS = "ends"
    """A line when a request ends, with its numbers."""
    PROMPTS = "prompts"
    """The text of each prompt as well."""


class RequestSettings(SettingsGroup):
    """Settings for requests that an engine in the caller's process has, too."""

    GROUP: ClassVar[str] = "API"

    chat_template: str | None = Field(
        None,
        description="chat template instead of the model's: a file with a Jinja template, or one of "
        + ", ".join(known_templates()),
    )
    disable_additional_properties: bool = Field(
        True,
        description="refuse keys of an object that its JSON schema does not declare, unless it sets"
        " additionalProperties",
    )


NO_STORE, SQLITE_PREFIX = "none", "sqlite:"
"""Values of `response_store`: no store, and what a file's path comes after."""


def _checked_store(value: str) -> str:
    is_file = value.startswith(SQLITE_PREFIX) and value != SQLITE_PREFIX
    if value not in ("memory", NO_STORE) and not is_file:
        raise ValueError("give memory, sqlite:FILE or none")
    return value


class ApiSettings(RequestSettings, NameSettings):
    """Settings of the router, shared by all commands with one."""

    GROUP: ClassVar[str] = "API"

    resume_wait: float = Field(
        30.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that a request whose scheduler is lost waits for another one",
    )
    client_stall_timeout: float = Field(
        60.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds after which a stream ends whose client reads nothing of it",
    )
    seed: int | None = Field(
        None,
        ge=0,
        lt=1 << 64,
        description="makes requests without a seed repeatable: theirs follow from this one, from"
        " the prompt, and from how often the prompt has come (default: drawn at random)",
    )
    max_live_requests: int = Field(
        4096, gt=0, description="requests that may run or wait; more are refused"
    )
    api_key: Secrets = Field(
        (),
        description="keys of which clients must show one; better set in the environment, since"
        " other users of the machine see a command line",
    )
    api_keys: FilePath | None = Field(
        None,
        description="YAML file of the API keys that clients must show; `signalbox keys create`"
        " makes its entries",
    )
    receipt_key: FilePath | None = Field(
        None,
        description="PEM file: private key of Ed25519 that signs the receipts that requests ask for"
        " (default: they are not signed)",
    )
    log_requests: LoggedRequests = Field(
        LoggedRequests.NONE,
        description="ends logs the end of each request with its numbers; prompts logs the text of"
        " its prompt as well",
    )
    trust_tenant_header: bool = Field(
        False,
        description="take a request's tenant from metadata x-signalbox-tenant; only behind a"
        " gateway that sets it",
    )
    reflection: bool | None = Field(
        None, description="serve gRPC reflection (default: on a loopback --host)"
    )
    max_grpc_connections: int = Field(
        1024,
        gt=0,
        lt=1 << 31,
        description="most connections of the gRPC API, and at most a quarter of the files that the"
        " process may open; further ones are closed at once. Calls that wait on one take up to"
        " 15 MB, so give a router behind a gateway fewer",
    )
    max_grpc_streams: int = Field(
        1024,
        gt=0,
        lt=1 << 31,
        description="most calls of one gRPC connection at a time; at the bound a client waits,"
        " without an error, until one has ended, and a call that it sends too soon after is"
        " UNAVAILABLE",
    )
    grpc_request_timeout: float = Field(
        10.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds after which a gRPC call ends whose request has not come whole",
    )
    http: bool = Field(True, description="serve OpenAI's HTTP API")
    http_port: Port = Field(
        8000,
        description="port of the HTTP API, on --host, as is vLLM's --port; 0 picks one",
    )
    allowed_origins: Annotated[str | None, BeforeValidator(joined)] = Field(
        None,
        description="origins of web pages that may call the HTTP API from a browser, with commas"
        " between them, or * for any (CORS; default: none)",
    )
    max_http_connections: int = Field(
        8192,
        gt=0,
        description="most connections of the HTTP API, and at most half of the files that the"
        " process may open; a new client takes the place of one that has sent no whole request,"
        " else it is answered 503",
    )
    max_http_connections_per_address: int | None = Field(
        None,
        gt=0,
        description="most HTTP connections from one address (IPv6: from one /64 network), which may"
        " be a proxy's with all clients behind it (default: no limit)",
    )
    min_http_body_rate: float = Field(
        500.0,
        ge=0,
        allow_inf_nan=False,
        description="least bytes a second of an HTTP request's body; one that is late by 20 s is"
        " answered 408; 0 is no limit",
    )
    unknown_fields: Literal["warn", "refuse"] = Field(
        "warn",
        description="what the HTTP API does with a field that it does not have: ignore it, and name"
        " it in the response's header x-signalbox-ignored-fields and in the log, or answer 400",
    )
    tool_call_parser: Literal[tool_call_formats.CHOICES] = Field(  # type: ignore[valid-type]
        "auto",
        description="how tool calls are found in the model's text; auto chooses by the chat"
        " template and the tokens, none leaves them in the text",
    )
    reasoning_parser: Literal[reasoning_formats.CHOICES] = Field(  # type: ignore[valid-type]
        "auto",
        description="how reasoning (such as text in <think>) is found in the model's text; auto"
        " chooses by the chat template and the tokens, none leaves it in the text",
    )
    allow_adapter_loading: bool = Field(
        False,
        description="let clients of the HTTP API load and unload LoRA adapters, from below the"
        " workers' --adapter-dir, and load one that a request names by its folder there",
    )
    response_store: Annotated[str, AfterValidator(_checked_store)] = Field(
        "memory",
        description="where the Responses API keeps responses: memory, until the router ends;"
        " sqlite:FILE, which routers of one machine may share; or none, which refuses store,"
        " background and previous_response_id",
    )
    response_store_size: int = Field(
        256,
        gt=0,
        le=1 << 20,
        description="MiB of responses that the store keeps, compressed; the oldest are dropped",
    )
    response_store_age: float = Field(
        2_592_000.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds for which the store keeps a response",
    )
    max_grammar_cpu: float = Field(
        3.0,
        gt=0,
        le=60,
        description="seconds of CPU time that compiling a structured output may take; one that"
        " takes more is refused",
    )
    max_grammar_memory: int = Field(
        192,
        gt=0,
        le=65_536,
        description="MiB of memory that compiling a structured output may take; one that takes"
        " more is refused",
    )


class AddressSettings(HostSettings):
    """Addresses of a router's ports, for all commands with one."""

    GROUP: ClassVar[str] = "addresses"

    grpc_port: Port = Field(
        50051,
        description="port of the gRPC API, on --host; 0 picks one, and so does serve without this"
        " flag if 50051 is taken",
    )


class ConsoleSettings(ApiSettings, HostSettings, TlsSettings):
    """Setting of the console on a router's HTTP port; its default depends on the port's host."""

    GROUP: ClassVar[str] = "API"

    console: bool | None = Field(
        None,
        description="serve the console, a web page, at / of the HTTP port (default: on a loopback"
        " --host); where others reach the port it needs API keys and --allowed-hosts",
    )

    @property
    def serves_console(self) -> bool:
        """True if the HTTP port serves the console."""
        return is_loopback(self.host) if self.console is None else self.console

    @model_validator(mode="after")
    def _shows_the_console_to_those_it_knows(self) -> Self:
        if not self.console:
            return self
        if not self.http:
            raise ValueError("--console is a page of the HTTP port; leave --no-http out")
        if is_loopback(self.host):
            return self
        if self.api_keys is None and not self.api_key:
            raise ValueError(
                f"--console on --host {self.host} would be open to all who reach it; give"
                " --api-keys a file of `signalbox keys create`"
            )
        if not self.allowed_hosts:
            raise ValueError(
                f"--console on --host {self.host} goes with --allowed-hosts; name the hosts by"
                " which browsers reach it"
            )
        return self


class ModelStartSettings(Settings):
    """Setting of requests for models that are loaded for them, and of their launcher."""

    GROUP: ClassVar[str] = "several models"

    model_start_timeout: float = Field(
        120.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds that a request waits for a model that is loaded for it, and that a"
        " start may take",
    )


class RouterSettings(AddressSettings, ConsoleSettings, TelemetrySettings, ModelStartSettings):
    """`signalbox router`."""

    GROUP: ClassVar[str] = "addresses"

    scheduler: Addresses = Field(
        "127.0.0.1:50052",
        description="HOST:PORT of the scheduler, or of several with commas between them: each model"
        " that they serve is served, and requests are spread over the schedulers of one",
    )
    model_launcher: Address | None = Field(
        None,
        description="HOST:PORT of the launcher of this machine's models, as `serve A B C` starts"
        " it: requests for a model that is not loaded wait until it is (default: none)",
    )
    metrics_sources: str | None = Field(
        None,
        description="NAME=SOCKET,... of services of this machine, each with its --metrics-socket;"
        " /metrics of the HTTP port shows theirs too, with the label service (default: none)",
    )

    @property
    def scheduler_addresses(self) -> tuple[str, ...]:
        """Addresses as "host:port"; requests are spread over all of them."""
        return tuple(texts(self.scheduler))

    @property
    def serves_reflection(self) -> bool:
        """True if the gRPC port serves reflection."""
        return is_loopback(self.host) if self.reflection is None else self.reflection

    @model_validator(mode="after")
    def _names_each_scheduler_once(self) -> Self:
        addresses = self.scheduler_addresses
        if len(set(addresses)) < len(addresses):
            raise ValueError(f"scheduler addresses are {addresses}; give at least one, each once")
        return self

    @model_validator(mode="after")
    def _has_usable_tool_formats(self) -> Self:
        tool_call_formats.check(self.tool_call_parser)
        return self


class RouterConfig(RouterSettings):
    """The settings, and values that only tests and the router's caller change."""

    version: str = "unknown"
    """Version that the HTTP API reports."""
    max_http_body_bytes: int = 8 << 20
    max_prompt_bytes: int = 4 << 20
    """UTF-8 bytes of the longest text that is tokenised."""
    max_unread_tokens: int = 16_384
    """Tokens that a client may leave unread before its request is aborted. Each alternative of a
    token's logprobs counts as a token."""
    max_waiting_for_models: int = 512
    """New requests that may wait for models that are loaded for them."""
    tokenizer_threads: int = 2
    model_poll_s: float = 1.0
    """Seconds between two queries of a scheduler that serves no model, for which one it serves."""
