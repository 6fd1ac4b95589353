"""Ranks on Ray listen where the scheduler can call them, or the worker is refused."""

import pytest

from signalbox.stack.placement.listening_hosts import fault_of, host_of
from signalbox.stack.placement.node_probe import RankNode
from signalbox_worker.service.worker_settings import WorkerSettings

NODE = RankNode(host="10.0.0.7", name="seven", versions="", fault="")


def settings(scheduler: str, **given: str) -> WorkerSettings:
    return WorkerSettings.model_validate(
        {"model": "m", "placement": "ray", "scheduler": scheduler, **given}
    )


@pytest.mark.parametrize(
    ("scheduler", "given", "host"),
    [
        ("10.0.0.1:50052", {}, "10.0.0.7"),
        ("scheduler.example:50052", {}, "10.0.0.7"),
        ("127.0.0.1:50052", {}, "127.0.0.1"),
        ("[::1]:50052", {}, "127.0.0.1"),
        ("10.0.0.1:50052", {"host": "0.0.0.0"}, "0.0.0.0"),
    ],
)
def test_ranks_listen_on_their_nodes_unless_the_scheduler_is_on_loopback(
    scheduler: str, given: dict[str, str], host: str
) -> None:
    assert host_of(settings(scheduler, **given), NODE) == host
    assert fault_of(settings(scheduler, **given), NODE, is_here=True) == ""


@pytest.mark.parametrize(
    ("scheduler", "given", "fault"),
    [
        ("127.0.0.1:50052", {}, "rank 0 is on 10.0.0.7, from where 127.0.0.1:50052 is no sched"),
        ("10.0.0.1:50052", {"host": "127.0.0.1"}, "cannot call rank 0 on 127.0.0.1 of 10.0.0.7; "),
        ("10.0.0.1:50052", {"host": "127.0.0.1", "advertise": "a.example:7"}, ""),
    ],
)
def test_a_rank_that_cannot_be_called_is_refused(
    scheduler: str, given: dict[str, str], fault: str
) -> None:
    found = fault_of(settings(scheduler, **given), NODE, is_here=False)
    assert fault in found
    assert bool(found) is bool(fault)
