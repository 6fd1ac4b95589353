"""Settings of the commands that start all three services on this machine."""

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from gpu_worker.worker_settings import EngineSettings
from router.config import ApiSettings
from rpc.settings.addresses import Host
from rpc.settings.service_settings import TelemetrySettings, flag_name
from scheduler_svc.config import SchedulingSettings


class ServeSettings(EngineSettings, SchedulingSettings, ApiSettings, TelemetrySettings):
    """`signalbox serve`: all three services on this machine."""

    GROUP: ClassVar[str] = "addresses"

    host: Host = Field("127.0.0.1", description="address to listen on")
    grpc_port: int = Field(
        50051, ge=0, le=65535, description="port of the gRPC API, on --host; 0 picks one"
    )
    workers: int = Field(1, gt=0, description="worker processes to start")

    def _ports(self) -> Iterator[tuple[str, int]]:
        yield from super()._ports()
        if self.metrics_port:
            for place in range(1, self.workers + 2):  # the scheduler's, and each worker's
                yield f"--metrics-port + {place}", self.metrics_port + place

    @model_validator(mode="after")
    def _meets_on_the_loopback(self) -> Self:
        for name in ("tls_ca", "allow_peer_names"):
            if getattr(self, name):
                raise ValueError(
                    f"{flag_name(name)} has no effect on serve, whose services meet on this"
                    " machine's loopback interface; start them one by one"
                )
        return self


class DemoSettings(ServeSettings):
    """`signalbox demo`: like serve, on ports that are free."""

    COMMAND: ClassVar[str] = "demo"

    grpc_port: int = Field(
        0, ge=0, le=65535, description="port of the gRPC API, on --host; 0 picks one"
    )
    http: bool = Field(False, description="serve OpenAI's HTTP API")

    @model_validator(mode="after")
    def _is_in_the_clear(self) -> Self:
        for name in ("tls_cert", "tls_key", "tls_client_ca", "api_keys"):
            if getattr(self, name):
                raise ValueError(f"{self.COMMAND} takes no {flag_name(name)}; use serve")
        return self


class RunSettings(DemoSettings):
    """`signalbox run`: like demo, with fewer log lines."""

    COMMAND: ClassVar[str] = "run"

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="least severe log lines on standard error"
    )
