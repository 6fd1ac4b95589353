"""Settings of the commands that start all three services on this machine."""

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from gpu_worker.worker_settings import EngineSettings
from router.config import AddressSettings, ApiSettings
from rpc.settings.addresses import Port
from rpc.settings.service_settings import LogLevel, TelemetrySettings, flag_name
from scheduler_svc.config import SchedulingSettings


class ServeSettings(
    AddressSettings, EngineSettings, SchedulingSettings, ApiSettings, TelemetrySettings
):
    """`signalbox serve`: all three services on this machine."""

    GROUP: ClassVar[str] = "addresses"
    IS_WHOLE_STACK: ClassVar[bool] = True

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


def _changed(name: str, default: Any) -> Any:
    """Returns the declaration of a setting of serve with another default."""
    return Field(default, description=ServeSettings.model_fields[name].description)


class DemoSettings(ServeSettings):
    """`signalbox demo`: like serve, on ports that are free."""

    COMMAND: ClassVar[str] = "demo"

    grpc_port: Port = _changed("grpc_port", 0)
    http: bool = _changed("http", False)

    @model_validator(mode="after")
    def _is_in_the_clear(self) -> Self:
        for name in ("tls_cert", "tls_key", "tls_client_ca", "api_keys"):
            if getattr(self, name):
                raise ValueError(f"{self.COMMAND} takes no {flag_name(name)}; use serve")
        return self


class RunSettings(DemoSettings):
    """`signalbox run`: like demo, with fewer log lines."""

    COMMAND: ClassVar[str] = "run"

    log_level: LogLevel = _changed("log_level", "warning")
