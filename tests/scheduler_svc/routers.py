"""A router that keeps what it is told, and requests of its own."""

from dataclasses import dataclass, field

from signalbox_contract.errors import Code
from signalbox_contract.request import BeamSearchParams
from signalbox_contract.updates import FinishedRequest, RequestUpdates
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.workers.cluster import Cluster
from tests.scheduler_svc.make import Loop, make_arrival


@dataclass(slots=True, eq=False)
class Router:
    """Keeps what it is told."""

    ended: dict[int, FinishedRequest] = field(default_factory=dict)

    def send(self, updates: RequestUpdates) -> None:
        for end in updates.finished_requests:
            assert end.handle not in self.ended, "a request ended twice"
            self.ended[end.handle] = end


def add_request(
    cluster: Cluster,
    router: Router,
    handle: int,
    *,
    max_tokens: int = 8,
    n: int = 1,
    deadline: float | None = None,
    tenant: str = "",
    beam_search: BeamSearchParams | None = None,
) -> SequenceGroup | None:
    group = make_arrival(
        [handle] * 5,
        reply_to=router,
        arrival=float(handle),
        deadline=deadline,
        handle=handle,
        request_id=f"r{handle}",
        max_tokens=max_tokens,
        num_sequences=n,
        tenant=tenant,
        beam_search=beam_search,
    )
    return group if cluster.requests.add(group) else None


def failure_of(router: Router, handle: int) -> tuple[Code, str, float | None]:
    failure = router.ended[handle].failure
    assert failure is not None
    return failure.code, failure.message, failure.retry_after_s


def turn(cluster: Cluster, loop: Loop) -> bool:
    """Runs a step, and tells routers what it brings; False if there is none."""
    is_busy = loop.send() or bool(loop.sent)
    if (outcome := loop.answer()) is not None:
        cluster.requests.send_updates(outcome)
    return is_busy


def finish(cluster: Cluster, loop: Loop) -> None:
    """Runs steps until none is left, and tells routers what they bring."""
    while turn(cluster, loop):
        cluster.check()
