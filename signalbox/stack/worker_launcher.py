"""Commands that start the workers of `serve`: on this machine, or on a Ray cluster.

Either is a child process of `serve`, so that one supervisor keeps both. On Ray the child is the
driver of one worker: Ray frees the placement group of a driver that ends, however it ends.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

from signalbox.settings.flags.service_flags import to_environment, to_flags
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.gpu_assignment import gpu_share, visible_gpus
from signalbox.stack.processes.worker_supervisor import name_of
from signalbox.stack.start_checks import LOOPBACK
from signalbox_worker.runner.native.threads import num_cores
from signalbox_worker.service.worker_settings import WorkerSettings


class WorkerCommand(NamedTuple):
    """The worker of a place as `child_processes.start` takes it."""

    name: str
    arguments: list[str]
    environment: Mapping[str, str]


class WorkerAddresses(Protocol):
    """Addresses that workers are started with."""

    @property
    def scheduler(self) -> str:
        """Address of the scheduler."""

    def metrics_port(self, place: int) -> int | None:
        """Returns the metrics port of a process behind the router."""

    def metrics_socket(self, name: str) -> str | None:
        """Returns the path of a process's metrics socket; None if there is none."""


class WorkerLauncher(Protocol):
    """Says how the worker of a place is started."""

    def command(self, place: int) -> WorkerCommand: ...


def make_launcher(settings: ServeSettings, addresses: WorkerAddresses) -> WorkerLauncher:
    """Returns the launcher that --placement names."""
    return (RayLauncher if settings.is_on_ray else LocalLauncher)(settings, addresses)


class LocalLauncher:
    """Starts workers on this machine, each on GPUs of its own if there are enough."""

    def __init__(self, settings: ServeSettings, addresses: WorkerAddresses) -> None:
        self._settings = settings
        self._addresses = addresses

    @cached_property
    def _gpus(self) -> list[str]:
        settings = self._settings
        return [] if settings.simulate or settings.device == "cpu" else visible_gpus()

    def command(self, place: int) -> WorkerCommand:
        settings, addresses, name = self._settings, self._addresses, name_of(place)
        arguments = to_flags(
            settings,
            WorkerSettings,
            host=LOOPBACK,
            port=0,
            scheduler=addresses.scheduler,
            metrics_port=addresses.metrics_port(2 + place),
            metrics_socket=addresses.metrics_socket(name),
            num_threads=_threads_per_worker(settings),
            # Certificates are for the public ports; the rest stays on the loopback interface.
            **dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca")),
        )
        # A worker that starts alone takes the first GPUs; to list them all would delay its start.
        is_alone = place == 0 and settings.workers == 1
        num_ranks = settings.parallel.num_ranks
        gpus = {} if is_alone else gpu_share(self._gpus, place=place, num_ranks=num_ranks)
        variables = {**gpus, **to_environment(settings, WorkerSettings)}
        return WorkerCommand(name, ["worker", *arguments], variables)


class RayLauncher:
    """Starts drivers of workers on a Ray cluster; files that flags name are those of the nodes."""

    def __init__(self, settings: ServeSettings, addresses: WorkerAddresses) -> None:
        self._settings = settings
        self._addresses = addresses

    def command(self, place: int) -> WorkerCommand:
        settings, addresses = self._settings, self._addresses
        arguments = to_flags(
            settings,
            WorkerSettings,
            host=WorkerSettings.model_fields["host"].default,  # the driver knows the nodes
            port=0,
            scheduler=addresses.scheduler,
            rank_port=settings.rank_port + place * settings.parallel.num_ranks,
            metrics_port=addresses.metrics_port(2 + place),
            tls_cert=settings.worker_tls_cert,
            tls_key=settings.worker_tls_key,
            tls_ca=settings.worker_tls_ca,
            tls_client_ca=settings.worker_tls_ca,
        )
        variables = to_environment(settings, WorkerSettings)
        return WorkerCommand(name_of(place), ["worker", *arguments], variables)


def _threads_per_worker(settings: ServeSettings) -> int | None:
    if settings.num_threads or settings.workers == 1 or settings.simulate:
        return settings.num_threads
    return max(1, num_cores() // settings.workers)
