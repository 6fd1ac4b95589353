"""The register of requests that live: what it keeps of those that have ended, and which expire."""

import gc
import weakref

from signalbox_scheduler.requests.live_requests import MAX_STALE_DEADLINES
from signalbox_scheduler.workers.cluster import Cluster
from tests.scheduler_svc.make import join_worker, make_cluster
from tests.scheduler_svc.queue.test_admission_checks import make_group
from tests.scheduler_svc.routers import Router


class Prompt(list[int]):
    """Can be referred to weakly."""


def add_and_abort(cluster: Cluster, handle: int, *, deadline: float) -> "weakref.ref[Prompt]":
    prompt = Prompt([handle] * 5)
    group = make_group(handle, Router(), deadline=deadline, prompt=prompt)
    assert cluster.requests.add(group)
    cluster.requests.abort(group)
    return weakref.ref(prompt)


def test_prompts_of_requests_that_have_ended_are_not_kept_until_their_deadlines() -> None:
    cluster = make_cluster()
    join_worker(cluster)
    handles = range(1, 90)
    assert len(handles) > MAX_STALE_DEADLINES
    prompts = [add_and_abort(cluster, handle, deadline=1e6) for handle in handles]
    gc.collect()
    assert sum(prompt() is not None for prompt in prompts) <= MAX_STALE_DEADLINES
    cluster.check()


def test_live_requests_expire_in_order_after_others_that_had_a_deadline_ended() -> None:
    times = [0.0]
    cluster, router = make_cluster(clock=lambda: times[-1]), Router()
    join_worker(cluster)
    for handle, deadline in ((91, 7.0), (92, 5.0)):
        cluster.requests.add(make_group(handle, router, deadline=deadline))
    for handle in range(1, 90):
        add_and_abort(cluster, handle, deadline=6.0)
    ended = {}
    for now in (4.0, 5.0, 6.0, 7.0):
        times.append(now)
        cluster.requests.expire()
        cluster.check()
        ended[now] = sorted(router.ended)
    assert ended == {4.0: [], 5.0: [92], 6.0: [92], 7.0: [91, 92]}
    assert not cluster.requests.has_deadlines
