"""Settings of the commands that start all three services."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from signalbox_router.config import AddressSettings, ConsoleSettings, ModelStartSettings
from signalbox_rpc.settings.addresses import Host, Port
from signalbox_rpc.settings.quantities import Texts
from signalbox_rpc.settings.service_settings import (
    FilePath,
    LogLevel,
    Settings,
    SettingsGroup,
    TelemetrySettings,
    flag_name,
)
from signalbox_rpc.transport.listening_ports import UNSPECIFIED_HOSTS
from signalbox_rpc.transport.tls import TlsConfig, is_loopback
from signalbox_scheduler.config import SchedulingSettings
from signalbox_worker.config import MAX_GIB
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


def _each(value: Any) -> Any:
    """Returns several texts as a tuple; one text is one, since a path may have a comma."""
    return (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    )


class SeveralModelsSettings(ModelStartSettings):
    """Models that share the memory of a machine."""

    GROUP: ClassVar[str] = "several models"

    more_models: Annotated[tuple[str, ...], BeforeValidator(_each)] = Field(
        (),
        description="further models, as MODEL or NAME=MODEL; on the command line they may stand"
        " behind MODEL. Each is loaded when it is asked for",
    )
    models: FilePath | None = Field(
        None,
        description="YAML file of further models: NAME: MODEL, or NAME with settings of its workers"
        " and scheduler, such as model and max_model_len, which beat the flags",
    )
    models_loaded: Literal["first", "none", "all"] = Field(
        "first",
        description="models that are loaded at the start; all is as many as have room",
    )
    models_memory: float | None = Field(
        None,
        gt=0,
        le=MAX_GIB,
        allow_inf_nan=False,
        description="GiB of RAM that the loaded models may take together, with KV cache and swap"
        " space (default: what is free at the start, less a tenth of it and at least 1 GiB)",
    )
    keep_warm: Texts = Field(
        (), description="names of models that are loaded at the start, and never ended for others"
    )
    idle_timeout: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="seconds without a request after which a model is ended (default: never)",
    )


OF_SEVERAL = SeveralModelsSettings.model_fields.keys() - Settings.model_fields.keys()
"""Settings of which one makes `serve` launch models when they are asked for."""


class ServeCommandSettings(ServeSettings, SeveralModelsSettings):
    """`signalbox serve`: of one model, or of several that are loaded when they are asked for."""

    GROUP: ClassVar[str] = "addresses"

    @property
    def lists_models(self) -> bool:
        """True if a file has the models."""
        return self.models is not None

    @property
    def serves_several(self) -> bool:
        """True if a launcher starts models when they are asked for."""
        return bool(self.model_fields_set & OF_SEVERAL)

    @model_validator(mode="after")
    def _can_launch_several(self) -> Self:
        if not self.serves_several:
            return self
        for name in ("is_on_ray", "metrics_port", "served_model_name", "recording_path"):
            if getattr(self, name):
                raise ValueError(_NOT_OF_SEVERAL[name])
        if self.model or self.models:
            return self
        raise ValueError("give a MODEL, or --models FILE; a file may have simulated ones")


_NOT_OF_SEVERAL = {
    "is_on_ray": "--placement ray takes one MODEL; start a serve for each, and a router for all",
    "metrics_port": "--metrics-port takes one MODEL; /metrics of the HTTP port shows all services",
    "served_model_name": "--served-model-name takes one MODEL; write NAME=MODEL",
    "recording_path": "--recording-path takes one MODEL",
}
"""Reasons why settings are refused beside several models."""


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
