"""Settings that several services share. A setting is declared once, as a field of its owner.

The field has the name that users write, a default, a range, a unit and the help text. Flags,
environment variables, keys of a YAML file, parameters of `LLM` and docs/reference/configuration.md
are made of it; nothing else checks its range.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from signalbox_rpc.interceptors.peer_roles import PeerNames
from signalbox_rpc.metrics.registry import OURS, PREFIXES, MetricsConfig
from signalbox_rpc.settings.addresses import Host, checked_hosts
from signalbox_rpc.settings.quantities import Count, Texts, count, in_lower_case, joined, texts
from signalbox_rpc.telemetry import logs
from signalbox_rpc.transport.tls import TlsConfig

G = TypeVar("G", bound="SettingsGroup")
FilePath = Annotated[str, "path"]
"""A path as text."""
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(in_lower_case)]


def flag_name(field: str) -> str:
    return "--" + field.replace("_", "-")


class SettingsGroup(BaseModel):
    """Settings that belong together; a command's settings are one or several groups."""

    GROUP: ClassVar[str]
    """Title of the fields of this class in a command's help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def part(self, group: type[G]) -> G:
        return group(**{name: getattr(self, name) for name in group.model_fields})

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true and false for a number: `metrics_port: no` would pick a port."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:
            raise ValueError("it is a number; leave it out for the default")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _names_a_place(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses an empty path, which is the current directory: `--kv-disk "$FOLDER"` without
        FOLDER."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if value == "" and any(one in (kind, *get_args(kind)) for one in (Path, FilePath)):
            raise ValueError("it is empty; name a file or folder, or leave it out")
        return value


class Settings(SettingsGroup):
    """Settings of every command."""

    GROUP: ClassVar[str] = "general"
    IS_WHOLE_STACK: ClassVar[bool] = False
    """True of a command that starts all services."""

    log_level: LogLevel = Field("info", description="least severe log lines on standard error")
    log_format: Literal[logs.FORMATS] = Field(  # type: ignore[valid-type]
        "text", description="format of log lines; json is one object a line, for log collectors"
    )
    debug: bool = Field(False, description="show tracebacks instead of one-line errors")


class HostSettings(SettingsGroup):
    """Address of a service's ports."""

    GROUP: ClassVar[str] = "addresses"

    host: Host = Field("127.0.0.1", description="address to listen on")


class TlsSettings(Settings):
    """Settings of every service: protection of its ports and channels."""

    GROUP: ClassVar[str] = "protection"

    tls_cert: FilePath | None = Field(
        None, description="PEM file: this process's certificate and chain; its ports speak TLS"
    )
    tls_key: FilePath | None = Field(None, description="PEM file: the certificate's private key")
    tls_ca: FilePath | None = Field(
        None,
        description="PEM file: certificate authority of the services that this one calls; its"
        " channels speak TLS",
    )
    tls_client_ca: FilePath | None = Field(
        None,
        description="PEM file: certificate authority of clients; each must show a certificate"
        " (mTLS)",
    )
    insecure: bool = Field(
        False,
        description="allow ports that other hosts reach without TLS and client checks, and a"
        " --kv-store elsewhere without key or TLS; only in a network that you trust",
    )
    allowed_hosts: Annotated[str | None, BeforeValidator(joined), AfterValidator(checked_hosts)] = (
        Field(
            None,
            description="hosts that HTTP ports answer by a request's Host header, with commas"
            " between them; *.example.com is any below that one, and * is any; names of the"
            " loopback interface and the port's own address are always answered (default: these on"
            " a loopback --host, any elsewhere)",
        )
    )
    allow_peer_names: str = Field(
        "",
        description="names in the certificates of peers, as ROLE=NAME,...; roles are router,"
        " scheduler, worker and operator, whose default is router or router.* and so on",
    )

    @property
    def tls(self) -> TlsConfig:
        """Certificates of the service's ports and channels."""
        return TlsConfig(
            cert=self.tls_cert,
            key=self.tls_key,
            ca=self.tls_ca,
            client_ca=self.tls_client_ca,
            peer_names=PeerNames.parse(self.allow_peer_names),
            insecure=self.insecure,
        )

    @model_validator(mode="after")
    def _has_whole_tls(self) -> Self:
        _ = self.tls  # raises ValueError
        return self


class TelemetrySettings(TlsSettings):
    """Settings of every service: metrics, traces and shutdown."""

    GROUP: ClassVar[str] = "metrics, traces and shutdown"

    trace_exporter: str = Field(
        "auto",
        description="exporter of spans: none, console, otlp or otlp=URL (gRPC), otlp-http or"
        " otlp-http=URL, file=PATH (OTLP as JSON, for `signalbox trace`); auto is what"
        " OTEL_TRACES_EXPORTER says",
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port where Prometheus reads /metrics, on --host; 0 picks one; with serve it is"
        " the router's, and scheduler and workers take the next ones (default: none)",
    )
    metrics_prefix: Literal[tuple(PREFIXES)] = Field(  # type: ignore[valid-type]
        OURS, description="prefix of metric names; vllm suits dashboards made for it"
    )
    drain_timeout: float = Field(
        30.0,
        ge=0,
        description="seconds that running requests are given after SIGTERM; meanwhile a worker"
        " hands them over to others with room, which compute anew what is left at the end; the"
        " other services end it",
    )

    @property
    def metrics(self) -> MetricsConfig:
        """Addresses of the service's metrics."""
        return MetricsConfig(
            port=self.metrics_port,
            prefix=self.metrics_prefix,
            socket=self.metrics_socket if isinstance(self, InnerSettings) else None,
            allowed_hosts=texts(self.allowed_hosts or ""),
        )

    @model_validator(mode="after")
    def _listens_once_on_each_port(self) -> Self:
        taken: dict[int, str] = {}
        for name, port in self._ports():
            if port in taken:
                another = name.partition(" ")[0]
                raise ValueError(
                    f"{taken[port]} and {name} are both {port}; choose another {another}"
                )
            if port:  # a port of 0 is chosen among the free ones
                taken[port] = name
        return self

    def _ports(self) -> Iterator[tuple[str, int]]:
        """Yields the flag and the number of each port that the service listens on."""
        names = ["port", "grpc_port", *(["http_port"] if getattr(self, "http", False) else [])]
        for name in names:
            if name in type(self).model_fields:
                yield flag_name(name), getattr(self, name)
        if self.metrics_port is not None:
            yield "--metrics-port", self.metrics_port


class InnerSettings(TelemetrySettings):
    """Settings of the services behind a router."""

    GROUP: ClassVar[str] = "metrics, traces and shutdown"

    metrics_socket: str | None = Field(
        None,
        description="Unix socket where a router of this machine reads the metrics, which shows them"
        " with its own; serve makes one for each service (default: none)",
    )


class LimitSettings(SettingsGroup):
    """Limits of a step; the scheduler applies its own and each worker's."""

    GROUP: ClassVar[str] = "scheduling"

    max_num_seqs: Count = Field(256, gt=0, description="most sequences in a step")
    max_num_batched_tokens: Annotated[int | None, BeforeValidator(count)] = Field(
        None,
        gt=0,
        description="most tokens in a step (default: what suits the device, 512 on a CPU)",
    )


class NameSettings(SettingsGroup):
    """Names of a served model: a worker uses the first one, a router accepts all of them."""

    GROUP: ClassVar[str] = "model and device"

    served_model_name: Texts = Field(
        (),
        description="names that requests may use for the model; the first is in answers and metrics"
        " (default: one made from MODEL)",
    )
