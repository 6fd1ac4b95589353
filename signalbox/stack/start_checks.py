"""Checks settings of a local stack before any of its processes starts."""

from pathlib import Path

from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.model_check import check_model
from signalbox.stack.opening_check import check_opening
from signalbox_kernels.native import isa_limit
from signalbox_router.limits.api_keys import read_keys
from signalbox_router.prompt.chat.known_templates import load_chat_template
from signalbox_rpc.transport.listening_ports import (
    GRPC_REMEDY,
    HTTP_REMEDY,
    METRICS_REMEDY,
    check_exposure,
    check_free,
    join_address,
)
from signalbox_rpc.transport.tls import check_files
from signalbox_worker.missing_packages import require_ray
from signalbox_worker.runner.ranks.startup_checks import check_store

LOOPBACK = "127.0.0.1"


def check_start(settings: ServeSettings) -> None:
    """Checks the model, the files that settings name, and the ports.

    Raises the exceptions of `check_model`, `check_opening` and `check_store`, TlsError,
    KeyFileError, BindError, and ValueError for a chat template that cannot be used or a
    SIGNALBOX_ISA that names no instruction set.
    """
    check_services(settings)
    if settings.is_on_ray:
        require_ray()
    else:  # on Ray the nodes' own files and memory count
        check_store(settings, settings)
        check_model(settings, num_workers=settings.workers)
        check_opening(settings)


def check_services(settings: ServeSettings) -> None:
    """Does what `check_start` does, without the model."""
    isa_limit()
    check_files(settings.tls)
    check_files(settings.services_tls)
    if settings.api_keys is not None:
        read_keys(Path(settings.api_keys))
    load_chat_template(settings.chat_template)
    _check_ports(settings)


def _check_ports(settings: ServeSettings) -> None:
    address = join_address(settings.host, settings.grpc_port)
    check_exposure(address, settings.tls)
    if not settings.takes_other_grpc_port:
        check_free(settings.host, settings.grpc_port, remedy=GRPC_REMEDY)
    if settings.http:
        check_free(settings.host, settings.http_port, remedy=HTTP_REMEDY)
    if settings.metrics_port:
        num_workers = 0 if settings.is_on_ray else settings.workers
        for place in range(2 + num_workers):
            host = settings.scheduler_host if place else settings.host
            check_free(host, settings.metrics_port + place, remedy=METRICS_REMEDY)
