"""Settings that every command and every service has."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from signalbox.settings.values.addresses import checked_hosts
from signalbox.settings.values.quantities import in_lower_case, joined

CONFIG_FILE = "config"
"""Name of the flag for the YAML file, which has no field."""


def flag_name(field: str) -> str:
    """Returns the flag of a field."""
    return "--" + field.replace("_", "-")


class Settings(BaseModel):
    """Settings of every command."""

    GROUP: ClassVar[str] = "general"
    """Title of the fields of this class in a command's help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], BeforeValidator(in_lower_case)
    ] = Field("info", description="least severe log lines on standard error")
    log_format: Literal["text", "json"] = Field(
        "text", description="format of log lines; json is one object a line, for log collectors"
    )
    debug: bool = Field(False, description="show tracebacks instead of one-line errors")


class TlsSettings(Settings):
    """Settings of every service: protection of its ports and channels."""

    GROUP: ClassVar[str] = "protection"

    tls_cert: str | None = Field(
        None, description="PEM file: this process's certificate and chain; its ports speak TLS"
    )
    tls_key: str | None = Field(None, description="PEM file: the certificate's private key")
    tls_ca: str | None = Field(
        None,
        description="PEM file: certificate authority of the services that this one calls; its"
        " channels speak TLS",
    )
    tls_client_ca: str | None = Field(
        None,
        description="PEM file: certificate authority of clients; each must show a certificate"
        " (mTLS)",
    )
    insecure: bool = Field(
        False,
        description="whether ports that other hosts reach may do without TLS and client checks;"
        " only in a network that you trust",
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
    metrics_prefix: Literal["signalbox", "vllm"] = Field(
        "signalbox", description="prefix of metric names; vllm suits dashboards made for it"
    )
    drain_timeout: float = Field(
        30.0,
        ge=0,
        description="seconds that running requests are given after SIGTERM; then a worker hands"
        " them over to others, and the other services end them",
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
        for field in ("port", "grpc_port"):
            if field in type(self).model_fields:
                yield flag_name(field), getattr(self, field)
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
