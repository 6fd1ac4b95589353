"""Makes the start of each rank of a worker, and checks that all are alike.

They have the same versions, were told the same, and have loaded the same.
"""

import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel

from signalbox_rpc.transport.tls import TlsConfig
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.ranks.rank_network import collective_hosts, host_of
from signalbox_worker.runner.ranks.service.rank_codec import decode_fields
from signalbox_worker.runner.ranks.service.rank_messages import Hello, Loaded, RankAddress, Start

_PARTS = ("model", "cache", "device", "disk", "shared", "speculation", "parallel")


@cache
def versions() -> str:
    """Returns those of Signalbox, Python and PyTorch, as one line."""
    packages = {"Signalbox": "signalbox-serving", "PyTorch": "torch"}
    found = [f"{name} {_version(package)}" for name, package in packages.items()]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def placed(
    start: Start, addresses: tuple[RankAddress, ...], tls: TlsConfig, *, is_placed: bool
) -> list[Start]:
    """Returns what each rank starts with. Raises ValueError; see `collective_hosts`."""
    parallel, hosts = start.parallel, [host_of(one.address) for one in addresses]
    collective = collective_hosts(
        hosts, ranks_of_stage=parallel.tensor_parallel_size, trusted=tls.insecure
    )
    return [
        replace(
            start,
            addresses=addresses,
            parallel=replace(
                parallel,
                rank=rank,
                local_rank=hosts[:rank].count(host),
                local_size=hosts.count(host),
                collective_host=collective[rank],
                is_placed=is_placed,
            ),
        )
        for rank, host in enumerate(hosts)
    ]


def check_versions(hellos: Sequence[Hello]) -> None:
    """Raises ValueError if a rank is of another version than this one."""
    for hello in hellos:
        if hello.versions != versions():
            raise ValueError(
                f"rank {hello.rank} has {hello.versions}, and rank 0 {versions()}; install the"
                " same everywhere"
            )


def check_told(hello: Hello, start: Start) -> None:
    """Raises ValueError if a rank was started with other settings than rank 0."""
    if not hello.told:
        return
    told = decode_fields(Start, hello.told)
    parts = ((told, start, part) for part in _PARTS)
    names = [
        name
        for theirs, ours, part in parts
        for name, value in _fields(getattr(theirs, part)).items()
        if name != "rank" and value != _fields(getattr(ours, part))[name]
    ]
    if names:
        raise ValueError(
            f"rank {hello.rank} was started with another {', '.join(names)} than rank 0; start all"
            " ranks by one command"
        )


def check_alike(rank: int, other: Loaded, own: Loaded) -> None:
    """Raises ValueError if a rank has loaded something else."""
    for name, theirs, ours in zip(Loaded._fields, other, own, strict=True):
        if theirs != ours:
            raise ValueError(
                f"rank {rank} has another {name} than rank 0, {theirs or 'none'} instead of"
                f" {ours or 'none'}; give all ranks the same files on the same kind of device"
            )


def _fields(config: BaseModel | SpeculationConfig | ParallelConfig) -> dict[str, Any]:
    return dict(config) if isinstance(config, BaseModel) else asdict(config)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
