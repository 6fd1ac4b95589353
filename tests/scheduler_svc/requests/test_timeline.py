"""The timeline of a request: when it waited and why, what preempted it, how it ended."""

from itertools import pairwise

import pytest

from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.insight.explain import Explanation, RequestState
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import (
    KEPT_FIRST,
    KEPT_LAST,
    EventKind,
    Timeline,
    TimelineEvent,
)
from signalbox_scheduler.requests.wait_accounting import WaitLedger, WaitReason
from signalbox_scheduler.workers.cluster import Cluster
from tests.scheduler_svc.make import (
    MODEL,
    Loop,
    join_worker,
    make_arrival,
    make_cluster,
    make_loop,
    make_request,
    make_scheduler,
)

QUEUED, SCHEDULED, PREFILL = EventKind.QUEUED, EventKind.SCHEDULED, EventKind.PREFILL
FIRST_TOKEN, PREEMPTED, RESUMED = EventKind.FIRST_TOKEN, EventKind.PREEMPTED, EventKind.RESUMED


def queue(admission: AdmissionQueue, *groups: SequenceGroup) -> None:
    for group in groups:
        admission.add(group)
        admission.record_arrival(group, group.times.arrival)


def run_together(loop: Loop, *groups: SequenceGroup) -> None:
    queue(loop.scheduler.admission, *groups)
    loop.run()
    for group in groups:
        times = [event.at for event in group.timeline.events]
        assert times == sorted(times)
    loop.scheduler.blocks.check([])


def kinds(group: SequenceGroup) -> list[EventKind]:
    return [event.kind for event in group.timeline.events]


def events_of(group: SequenceGroup, kind: EventKind) -> list[TimelineEvent]:
    return [event for event in group.timeline.events if event.kind is kind]


def explained(cluster: Cluster, request_id: str) -> Explanation:
    explanation = cluster.requests.explain(request_id)
    assert explanation is not None
    return explanation


def test_request_alone_is_queued_scheduled_prefilled_and_has_its_first_token() -> None:
    loop = make_loop(make_scheduler())
    group = make_request([1, 2, 3, 4, 5], max_tokens=20)
    run_together(loop, group)
    assert kinds(group) == [QUEUED, SCHEDULED, PREFILL, FIRST_TOKEN]  # nothing for each token
    assert group.timeline.events[2].num_tokens == 5


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_prompt_of_one_token_has_a_first_token(steps_in_flight: int) -> None:
    loop = make_loop(make_scheduler(), depth=steps_in_flight)
    group = make_request([1], max_tokens=20)
    run_together(loop, group)
    assert kinds(group) == [QUEUED, SCHEDULED, PREFILL, FIRST_TOKEN]
    assert group.times.first_token is not None
    assert loop.scheduler.output_processor.num_prompt_tokens == 1


def test_prompt_of_which_one_token_is_not_cached_has_a_first_token() -> None:
    loop = make_loop(make_scheduler(block_size=4), depth=2)
    prompt = list(range(1, 10))
    run_together(loop, make_request(prompt, max_tokens=1))
    second = make_request(prompt, max_tokens=8, arrival=loop.now)
    run_together(loop, second)
    assert events_of(second, PREFILL)[0].num_tokens == 1
    assert FIRST_TOKEN in kinds(second)


def test_each_chunk_of_a_prefill_is_noted() -> None:
    loop = make_loop(make_scheduler(max_num_batched_tokens=8))
    group = make_request(list(range(1, 21)), max_tokens=2)
    run_together(loop, group)
    assert [event.num_tokens for event in events_of(group, PREFILL)] == [8, 8, 4]


def test_first_chunk_says_how_many_tokens_were_cached() -> None:
    loop = make_loop(make_scheduler(block_size=4))
    prompt = list(range(1, 15))
    first = make_request(prompt, max_tokens=1)
    run_together(loop, first)
    second = make_request(prompt, max_tokens=1, arrival=loop.now)
    run_together(loop, second)
    assert events_of(first, PREFILL)[0].num_cached_tokens == 0
    assert events_of(second, PREFILL)[0].num_cached_tokens == 12
    assert events_of(second, PREFILL)[0].num_tokens == 2


def preempt_one(mode: PreemptionMode) -> tuple[SequenceGroup, SequenceGroup]:
    loop = make_loop(make_scheduler(num_gpu_blocks=8, num_cpu_blocks=16, mode=mode))
    older = make_request([1] * 10, max_tokens=14, arrival=0.0, request_id="older")
    younger = make_request([2] * 10, max_tokens=14, arrival=0.5, request_id="younger")
    run_together(loop, older, younger)
    return older, younger


def test_swapped_request_says_by_whom_and_how_many_blocks_went_and_came() -> None:
    older, younger = preempt_one(PreemptionMode.SWAP)
    [out], [back] = events_of(younger, PREEMPTED), events_of(younger, RESUMED)
    assert (out.other_request_id, out.is_swap) == ("older", True)
    assert out.num_blocks == back.num_blocks > 0
    assert back.is_swap
    assert not events_of(older, PREEMPTED)


def test_recomputed_request_waits_again_and_says_for_what() -> None:
    _, younger = preempt_one(PreemptionMode.RECOMPUTE)
    [out], [back] = events_of(younger, PREEMPTED), events_of(younger, RESUMED)
    assert not out.is_swap
    assert out.num_blocks > 0
    assert sum(wait.seconds for wait in back.waits) == back.at - out.at
    assert back.waits[0].reason is WaitReason.BLOCKS
    assert len(events_of(younger, PREFILL)) > 1


def waits_of_second(loop: Loop, first: SequenceGroup, second: SequenceGroup) -> TimelineEvent:
    queue(loop.scheduler.admission, first)
    loop.send()
    second.times.arrival = loop.now
    queue(loop.scheduler.admission, second)
    loop.run()
    [scheduled] = events_of(second, SCHEDULED)
    assert sum(wait.seconds for wait in scheduled.waits) == scheduled.at - second.times.arrival
    return scheduled


def test_who_waits_for_a_place_says_sequences() -> None:
    loop = make_loop(make_scheduler(max_num_seqs=1))
    scheduled = waits_of_second(loop, make_request([1] * 5), make_request([2] * 5))
    assert scheduled.waits[0].reason is WaitReason.SEQUENCES
    assert scheduled.waits[0].num_plans > 1


def test_who_waits_for_memory_says_blocks() -> None:
    loop = make_loop(make_scheduler(num_gpu_blocks=8))
    first = make_request([1] * 20, max_tokens=8)
    scheduled = waits_of_second(loop, first, make_request([2] * 20))
    assert scheduled.waits[0].reason is WaitReason.BLOCKS


def test_who_waits_behind_a_long_prompt_says_tokens() -> None:
    loop = make_loop(make_scheduler(max_num_batched_tokens=4), depth=1)
    first = make_request([1] * 40, max_tokens=1)
    scheduled = waits_of_second(loop, first, make_request([2] * 5))
    assert scheduled.waits[0].reason is WaitReason.TOKENS


def test_account_of_waits_covers_the_time_exactly() -> None:
    ledger = WaitLedger()
    ledger.record(WaitReason.BLOCKS, 10.0)
    start = ledger.account(12.0)
    ledger.record(WaitReason.TOKENS, 15.0)
    ledger.record(WaitReason.BLOCKS, 16.0)
    waits = ledger.since(start, 18.0)
    assert [(wait.reason, wait.seconds) for wait in waits] == [
        (WaitReason.BLOCKS, 5.0),
        (WaitReason.TOKENS, 1.0),
    ]
    assert sum(wait.seconds for wait in waits) == 18.0 - 12.0


def test_timeline_keeps_its_first_and_last_events_and_counts_the_rest() -> None:
    timeline = Timeline()
    for i in range(1000):
        timeline.add(EventKind.PREFILL, float(i))
    assert len(timeline.events) == KEPT_FIRST + KEPT_LAST
    assert timeline.events[KEPT_FIRST - 1].at == KEPT_FIRST - 1
    assert timeline.events[KEPT_FIRST].at == 1000 - KEPT_LAST
    assert len(timeline.events) + timeline.num_dropped == 1000
    assert all(a.at < b.at for a, b in pairwise(timeline.events))


def test_branches_are_noted_when_they_fork_and_as_they_end() -> None:
    loop = make_loop(make_scheduler())
    group = make_request([1, 2, 3], max_tokens=4, n=3)
    run_together(loop, group)
    assert [event.num_sequences for event in events_of(group, EventKind.FORKED)] == [3]
    ends = events_of(group, EventKind.SEQUENCE_FINISHED)
    assert sorted(event.branch for event in ends) == [0, 1, 2]
    assert {event.detail for event in ends} <= {"LENGTH", "STOP"}


def test_live_request_that_waits_is_explained_with_its_place_and_reason() -> None:
    cluster = make_cluster(clock=lambda: 7.0)
    engine, _ = join_worker(cluster)
    assert explained_after_adding(cluster, "first", "second").num_ahead == 1
    engine.scheduler.schedule(7.5)
    explanation = explained(cluster, "second")
    assert explanation.state is RequestState.RUNNING
    assert explanation.events[-1].kind is PREFILL
    cluster.check()


def explained_after_adding(cluster: Cluster, *request_ids: str) -> Explanation:
    for request_id in request_ids:
        group = make_arrival([1, 2, 3], arrival=5.0, request_id=request_id)
        cluster.requests.add(group)
    explanation = explained(cluster, request_ids[-1])
    assert explanation.state is RequestState.WAITING
    assert explanation.queued_s == 2.0
    assert [wait.reason for wait in explanation.waits] == [WaitReason.NEXT_STEP]
    return explanation


def test_moved_request_says_that_its_worker_was_lost() -> None:
    cluster = make_cluster()
    lost, _ = join_worker(cluster)
    cluster.requests.add(make_arrival([1, 2, 3], request_id="moved"))
    lost.scheduler.schedule(1.0)
    other, _ = join_worker(cluster)
    cluster.leave(lost)
    other.scheduler.schedule(2.0)
    assert [event.kind for event in explained(cluster, "moved").events] == [
        *(QUEUED, SCHEDULED, PREFILL),
        *(EventKind.MOVED, EventKind.SUSPECTED, QUEUED, RESUMED, PREFILL),
    ]
    cluster.check()


def test_ended_requests_stay_explainable_up_to_a_number() -> None:
    cluster = Cluster(explain_history=2, clock=lambda: 9.0)
    cluster.serve(MODEL)
    join_worker(cluster)
    for request_id in ("a", "b", "c"):
        group = make_arrival([1, 2, 3], arrival=8.0, request_id=request_id)
        assert cluster.requests.add(group)
        cluster.requests.abort(group)
    assert cluster.requests.explain("a") is None
    ended = explained(cluster, "c")
    assert ended.state is RequestState.ENDED
    assert ended.events[-1].kind is EventKind.ENDED
    assert ended.events[-1].detail == "CANCELLED: aborted"
    assert len(cluster.requests.history) == 2
    cluster.check()


def test_the_time_in_which_a_request_loads_is_told_from_that_in_the_queue() -> None:
    ledger, timeline = WaitLedger(), Timeline()
    ledger.record(WaitReason.BLOCKS, 0.0)
    timeline.wait(ledger, 0.0)
    timeline.loading(ledger, 1.0)
    assert timeline.waits(ledger, 3.5)[0] == (WaitReason.LOADING, 2.5, 0)
    timeline.loaded(ledger, 4.0)
    ledger.record(WaitReason.TOKENS, 5.0)
    waits = {wait.reason: wait.seconds for wait in timeline.waits(ledger, 5.5)}
    assert list(waits.items()) == [
        (WaitReason.LOADING, 3.0),
        (WaitReason.BLOCKS, 2.0),
        (WaitReason.TOKENS, 0.5),
    ]


def test_a_request_that_is_queued_again_has_waited_for_nothing_yet() -> None:
    ledger, timeline = WaitLedger(), Timeline()
    timeline.wait(ledger, 0.0)
    timeline.loading(ledger, 1.0)
    timeline.wait(ledger, 2.0)  # its worker was lost
    assert timeline.waits(ledger, 2.0) == ()
