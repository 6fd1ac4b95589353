"""Reads the place of this rank among those that torchrun, Slurm or a LeaderWorkerSet starts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

FIRST_NAME = "MASTER_CERTIFIED_NAME"
"""Variable of `first_name`, which the driver on Ray sets beside those of torchrun, because it knows
nodes by their addresses alone."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a rank, as the environment states it."""

    launcher: str
    rank: int
    size: int
    first_host: str
    """Name or address of the host of rank 0."""
    is_one_host: bool
    """True if all ranks are on one host."""
    local_rank: int = 0
    """Number of this rank among those of its host."""
    first_name: str = ""
    """Name that the certificate of rank 0 is for; empty if it is for `first_host`."""


def read_place(environment: Mapping[str, str]) -> RankPlace:
    """Returns this rank's place; within the others that of torchrun. Raises ValueError."""
    for read in (_torchrun, _leader_worker_set, _slurm):
        if (place := read(environment)) is not None:
            if not 0 <= place.rank < place.size:
                raise ValueError(
                    f"{place.launcher} says that this is rank {place.rank} of {place.size}"
                )
            return place
    raise ValueError(
        "placement is 'environment', which says of no rank: start the command by torchrun (RANK,"
        " WORLD_SIZE, MASTER_ADDR), srun (SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_NODELIST) or in a"
        " LeaderWorkerSet (LWS_WORKER_INDEX, LWS_GROUP_SIZE, LWS_LEADER_ADDRESS), or use 'local'"
    )


def first_of_nodes(nodes: str) -> str:
    """Returns the first name of a list as Slurm writes it, such as a[01-03,7]b,c: a01b."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None, "it may be empty"
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _torchrun(environment: Mapping[str, str]) -> RankPlace | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        return None
    size = _number(environment, "WORLD_SIZE")
    return RankPlace(
        "torchrun",
        _number(environment, "RANK"),
        size,
        environment["MASTER_ADDR"],
        is_one_host=environment.get("LOCAL_WORLD_SIZE") == str(size),
        local_rank=_number(environment, "LOCAL_RANK", default="0"),
        first_name=environment.get(FIRST_NAME, ""),
    )


def _leader_worker_set(environment: Mapping[str, str]) -> RankPlace | None:
    if not {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS"} <= environment.keys():
        return None
    size = _number(environment, "LWS_GROUP_SIZE")
    return RankPlace(
        "the LeaderWorkerSet",
        _number(environment, "LWS_WORKER_INDEX"),
        size,
        environment["LWS_LEADER_ADDRESS"],
        is_one_host=size == 1,
    )


def _slurm(environment: Mapping[str, str]) -> RankPlace | None:
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if nodes is None or not {"SLURM_PROCID", "SLURM_NTASKS"} <= environment.keys():
        return None
    num_nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_JOB_NUM_NODES")
    return RankPlace(
        "Slurm",
        _number(environment, "SLURM_PROCID"),
        _number(environment, "SLURM_NTASKS"),
        first_of_nodes(nodes),
        is_one_host=num_nodes == "1",
        local_rank=_number(environment, "SLURM_LOCALID", default="0"),
    )


def _number(environment: Mapping[str, str], name: str, *, default: str | None = None) -> int:
    text = environment[name] if default is None else environment.get(name, default)
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r} in the environment; it must be a number")
    return int(text)
