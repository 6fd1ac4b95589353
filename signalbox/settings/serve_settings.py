"""Settings of the commands that start all three services."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from signalbox_router.config import AddressSettings, ConsoleSettings
from signalbox_rpc.settings.addresses import Host, Port
from signalbox_rpc.settings.service_settings import (
    FilePath,
    LogLevel,
    SettingsGroup,
    TelemetrySettings,
    flag_name,
)
from signalbox_rpc.transport.listening_ports import UNSPECIFIED_HOSTS
from signalbox_rpc.transport.tls import TlsConfig, is_loopback
from signalbox_scheduler.config import SchedulingSettings
from signalbox_worker.service.worker_settings import EngineSettings, PlacementSettings


def _not_a_range(value: Any) -> Any:
    if isinstance(value, str) and ".." in value:
        raise ValueError(
            "give a fixed number; on Kubernetes the HorizontalPodAutoscaler of deploy/kubernetes"
            " follows the load"
        )
    return value


class ElsewhereSettings(PlacementSettings, SettingsGroup):
    """Settings with which workers on other machines meet the scheduler of `serve`."""

    GROUP: ClassVar[str] = "placement of ranks"

    scheduler_host: Host = Field(
        "127.0.0.1",
        description="with --placement ray, name or address of this machine that the scheduler"
        " listens on and workers call",
    )
    worker_tls_cert: FilePath | None = Field(
        None,
        description="with --placement ray, PEM file on the nodes: a worker's certificate and chain",
    )
    worker_tls_key: FilePath | None = Field(
        None, description="with --placement ray, PEM file on the nodes: its private key"
    )
    worker_tls_ca: FilePath | None = Field(
        None,
        description="with --placement ray, PEM file on the nodes: certificate authority of all"
        " services",
    )


_OF_WORKERS = ("worker_tls_cert", "worker_tls_key", "worker_tls_ca")
_BETWEEN_SERVICES = ("tls_cert", "tls_key", "tls_ca", *_OF_WORKERS)


class ServeSettings(
    AddressSettings,
    EngineSettings,
    ElsewhereSettings,
    SchedulingSettings,
    ConsoleSettings,
    TelemetrySettings,
):
    """`signalbox serve`: router and scheduler on this machine, and workers here or on Ray."""

    GROUP: ClassVar[str] = "addresses"
    IS_WHOLE_STACK: ClassVar[bool] = True

    workers: Annotated[int, BeforeValidator(_not_a_range)] = Field(
        1,
        ge=1,
        le=9999,
        description="workers to keep running, which are started again if they are lost",
    )

    @property
    def takes_other_grpc_port(self) -> bool:
        """True if any port will do where the default one is taken."""
        return "grpc_port" not in self.model_fields_set

    @property
    def services_tls(self) -> TlsConfig:
        """Certificates of scheduler and launcher, where workers reach the scheduler."""
        if not self.tls_ca:
            return TlsConfig(insecure=self.insecure)
        return TlsConfig(
            cert=self.tls_cert,
            key=self.tls_key,
            ca=self.tls_ca,
            client_ca=self.tls_ca,
            peer_names=self.tls.peer_names,
            insecure=self.insecure,
        )

    def _ports(self) -> Iterator[tuple[str, int]]:
        for flag, port in super()._ports():
            yield flag, 0 if flag == "--grpc-port" and self.takes_other_grpc_port else port
        if self.metrics_port:
            is_here = self.placement == "local"  # else a node has the worker's port
            num_workers = self.workers if is_here else 0
            for place in range(1, num_workers + 2):  # the scheduler's, and each worker's
                yield f"--metrics-port + {place}", self.metrics_port + place

    @model_validator(mode="after")
    def _reaches_its_workers(self) -> Self:
        if self.placement == "environment":
            raise ValueError(
                "--placement environment starts each rank by itself; use `signalbox worker`"
            )
        if self.is_on_ray:
            self._check_ports_of_ranks()
            self._check_meeting_place()
            return self
        for name in ("tls_ca", "allow_peer_names"):
            if getattr(self, name):
                raise ValueError(
                    f"{flag_name(name)} has no effect on serve, whose services meet on this"
                    " machine's loopback interface; start them one by one"
                )
        if useless := self.model_fields_set & {"scheduler_host", *_OF_WORKERS}:
            raise ValueError(f"{flag_name(min(useless))} has no effect without --placement ray")
        return self

    def _check_ports_of_ranks(self) -> None:
        num_ports = self.workers * self.parallel.num_ranks
        if self.rank_port + num_ports - 1 > 65535:
            raise ValueError(
                f"{num_ports} ranks take as many ports from --rank-port {self.rank_port} on; lower"
                " it"
            )

    def _check_meeting_place(self) -> None:
        if self.scheduler_host in UNSPECIFIED_HOSTS:
            raise ValueError(
                f"--scheduler-host {self.scheduler_host} is no address that a worker can call; give"
                " this machine's own"
            )
        given = [name for name in ("tls_ca", *_OF_WORKERS) if getattr(self, name)]
        missing = [name for name in _BETWEEN_SERVICES if not getattr(self, name)]
        if given and missing:
            raise ValueError(f"{flag_name(given[0])} goes with {flag_name(missing[0])}; give both")
        if missing and not self.insecure and not is_loopback(self.scheduler_host):
            raise ValueError(
                f"the scheduler would listen on {self.scheduler_host} for workers without"
                f" certificates; give {', '.join(map(flag_name, _BETWEEN_SERVICES))}, or --insecure"
                " in a network that you trust"
            )


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
        for name in ("tls_cert", "tls_key", "tls_client_ca", "api_keys", "is_on_ray"):
            if getattr(self, name):
                flag = "--placement ray" if name == "is_on_ray" else flag_name(name)
                raise ValueError(f"{self.COMMAND} takes no {flag}; use serve")
        return self


class RunSettings(DemoSettings):
    """`signalbox run`: like demo, with fewer log lines."""

    COMMAND: ClassVar[str] = "run"

    log_level: LogLevel = _changed("log_level", "warning")


class BatchSettings(RunSettings):
    """`signalbox run-batch`: like run, with the HTTP API on a free port."""

    COMMAND: ClassVar[str] = "run-batch"

    http: bool = _changed("http", True)
    http_port: Port = _changed("http_port", 0)
