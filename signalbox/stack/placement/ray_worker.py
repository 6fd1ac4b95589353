"""`signalbox worker --placement ray`: runs the ranks of one worker on a Ray cluster.

This process starts them, watches them and ends them. Ray ends its actors and frees the placement
group if this process is killed, and each rank ends with its actor.
"""

import logging
import signal
import socket
import threading
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from signalbox.settings.environment import PROCESS_NAME
from signalbox.settings.flags.service_flags import to_flags
from signalbox.stack.placement import listening_hosts, node_probe
from signalbox.stack.placement.node_probe import RankNode
from signalbox.stack.placement.rank_actor import RankActor
from signalbox.stack.placement.ray_group import make_group
from signalbox.stack.processes.child_processes import process_name
from signalbox_worker.runner.ranks.rank_network import FIRST_NAME
from signalbox_worker.runner.ranks.rank_starts import versions
from signalbox_worker.service.worker_settings import WorkerSettings

logger = logging.getLogger(__name__)

_START_S = 120.0
"""Seconds for an actor to start on its node."""
_END_S = 1.0
"""Seconds for ranks to end by themselves after one has."""
_LOOK_S = 0.5
_REACH_S = 10.0


class RanksLost(RuntimeError):
    """Ranks have ended that were not told to."""


def run(settings: WorkerSettings) -> None:
    """Runs the worker until SIGTERM or SIGINT. Raises NoRoom, RanksLost, ValueError, or
    ConnectionError if there is no cluster."""
    stopping = threading.Event()
    address = settings.placement.partition("=")[2] or "auto"
    _check_address(address)
    ray.init(address=address, logging_level=logging.WARNING)
    for number in (signal.SIGTERM, signal.SIGINT):  # in the place of Ray's own handlers
        signal.signal(number, lambda *_: stopping.set())
    try:
        _run(settings, stopping)
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raises ValueError or ConnectionError; Ray itself would end this process."""
    if "://" in address:
        raise ValueError(
            f"--placement ray={address}: give HOST:PORT of the head, or no address on a node of it"
        )
    host, _, port = address.rpartition(":")
    if not host:  # auto, or local
        return
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except (OSError, ValueError) as error:
        raise ConnectionError(f"no Ray cluster at {address}: {error}") from None


def _run(settings: WorkerSettings, stopping: threading.Event) -> None:
    group = make_group(
        _bundles(settings),
        stopping,
        strategy=settings.placement_strategy,
        timeout_s=settings.placement_timeout,
    )
    if group is None:
        return
    actors: list[Any] = []
    try:
        nodes = _nodes(settings, group)
        _check(nodes, settings)
        actors = _actors(settings, group)
        logger.info("ranks on Ray: %s", ", ".join(node.host for node in nodes))
        _watch(actors, _start(settings, actors, nodes), stopping)
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


def _bundles(settings: WorkerSettings) -> list[dict[str, float]]:
    parallel = settings.parallel
    num_ranks = parallel.tensor_parallel_size
    bundle = {"GPU": float(num_ranks)} if _has_gpus(settings) else {"CPU": float(num_ranks)}
    if "CPU" in bundle and settings.num_threads:
        bundle["CPU"] = max(bundle["CPU"], settings.num_threads / parallel.pipeline_parallel_size)
    return [bundle] * parallel.pipeline_parallel_size


def _has_gpus(settings: WorkerSettings) -> bool:
    if settings.device == "auto":
        return "GPU" in ray.cluster_resources()
    return settings.device == "cuda"


def _actors(settings: WorkerSettings, group: PlacementGroup) -> list[Any]:
    """Returns an actor for each rank, in the bundle of its stage."""
    num_ranks = settings.parallel.tensor_parallel_size
    remote = ray.remote(RankActor)
    found = []
    for rank in range(settings.parallel.num_ranks):
        index = rank // num_ranks
        bundle = group.bundle_specs[index]
        found.append(
            remote.options(
                name=None,
                num_gpus=bundle.get("GPU", 0) / num_ranks,
                num_cpus=bundle.get("CPU", 0) / num_ranks,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=3,
                scheduling_strategy=_in_bundle(group, index),
            ).remote()
        )
    return found


def _in_bundle(group: PlacementGroup, index: int) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=index
    )


def _nodes(settings: WorkerSettings, group: PlacementGroup) -> list[RankNode]:
    """Returns the node of each rank. Raises RanksLost if one does not answer."""
    ray.cloudpickle.register_pickle_by_value(node_probe)
    remote = ray.remote(node_probe.probe)
    asked = [
        remote.options(
            num_cpus=0, max_retries=0, scheduling_strategy=_in_bundle(group, stage)
        ).remote()
        for stage in range(settings.parallel.pipeline_parallel_size)
    ]
    try:
        nodes: list[RankNode] = ray.get(asked, timeout=_START_S)
    except GetTimeoutError:
        raise RanksLost(f"a node of the group has not answered in {_START_S:g} s") from None
    except RayError as error:
        cause = str(error).strip().splitlines()[-1]
        raise RanksLost(f"a node of the group cannot run the check of versions: {cause}") from None
    return [node for node in nodes for _ in range(settings.parallel.tensor_parallel_size)]


def _check(nodes: list[RankNode], settings: WorkerSettings) -> None:
    """Raises ValueError that names nodes with other versions, or rank 0 if it and the scheduler do
    not reach each other."""
    if fault := node_probe.fault_of(nodes, versions()):
        raise ValueError(fault)
    is_here = nodes[0].host == ray.util.get_node_ip_address()
    if fault := listening_hosts.fault_of(settings, nodes[0], is_here=is_here):
        raise ValueError(fault)


def _start(settings: WorkerSettings, actors: list[Any], nodes: list[RankNode]) -> dict[Any, int]:
    """Starts the ranks; returns their numbers by what each ends with."""
    hosts = [node.host for node in nodes]
    first_name = _certified_name(settings, actors[0], nodes[0])
    started = {}
    for rank, actor in enumerate(actors):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(actors)),
            "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
            "MASTER_ADDR": hosts[0],
            FIRST_NAME: first_name,
            "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
            **({PROCESS_NAME: name} if (name := process_name("")) else {}),
        }
        flags = _flags(settings, nodes[rank])
        started[actor.run.remote(["worker", *flags], variables)] = rank
    return started


def _flags(settings: WorkerSettings, node: RankNode) -> list[str]:
    """Returns what a rank on this node is started with."""
    return to_flags(
        settings,
        WorkerSettings,
        host=listening_hosts.host_of(settings, node),
        placement="environment",
        placement_strategy=WorkerSettings.model_fields["placement_strategy"].default,
        placement_timeout=WorkerSettings.model_fields["placement_timeout"].default,
    )


def _certified_name(settings: WorkerSettings, actor: Any, node: RankNode) -> str:
    """Returns the name by which others check the certificate of a rank, whose node they call by its
    address. Raises RanksLost."""
    try:
        name: str = ray.get(actor.certified_name.remote(settings.tls), timeout=_START_S)
    except RayError as error:
        cause = str(error).strip().splitlines()[-1]
        raise RanksLost(f"rank 0 on {node.host} cannot read its certificate: {cause}") from None
    return name


def _watch(actors: list[Any], started: dict[Any, int], stopping: threading.Event) -> None:
    """Returns once all ranks have ended in order. Raises RanksLost."""
    pending, is_told = list(started), False
    faults: list[str] = []
    while pending:
        if stopping.is_set() and not is_told:
            is_told = True
            actors[0].send.remote(signal.SIGTERM)  # which ends the others
        done, pending = ray.wait(pending, timeout=_LOOK_S)
        faults += [fault for one in done if (fault := _fault(started[one], one))]
        is_over = faults or (is_told and len(pending) < len(started))
        if is_over and pending:  # the first says why; the others are to end by themselves
            ray.wait(pending, num_returns=len(pending), timeout=_END_S)
            break
    if faults:
        raise RanksLost(f"{faults[0]}; the worker ends, and its requests continue at other workers")


def _fault(rank: int, ended: Any) -> str:
    try:
        status = ray.get(ended)
    except RayError as error:
        return f"rank {rank} is lost: {str(error).strip().splitlines()[0]}"
    return f"rank {rank} exited with status {status}" if status else ""
