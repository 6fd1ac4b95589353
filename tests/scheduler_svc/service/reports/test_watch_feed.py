"""What watchers of a scheduler are told, and what they are never told."""

from typing import Any

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, NO_BLOCK, CacheGroup, decode_group
from signalbox_contract.columns import int32_list, int64_list
from signalbox_protos.scheduler.v1 import watch_pb2 as pb
from signalbox_rpc.limits.watchers import MAX_WAITING, Watcher
from signalbox_scheduler.audits.finding import AuditSource
from signalbox_scheduler.insight.step_observer import UNOBSERVED
from signalbox_scheduler.requests.sequence_ids import sequence_ids
from signalbox_scheduler.service.reports.watch_feed import FRAME_S, HERE, WatchFeed
from tests.scheduler_svc.make import join_worker, make_arrival, make_cluster
from tests.scheduler_svc.routers import Router, add_request, turn
from tests.scheduler_svc.watching import Shown, expected_of


def waiting(watcher: Watcher[pb.Frame]) -> list[pb.Frame]:
    """Takes the frames that wait for a watcher."""
    frames = [frame for _, frame in watcher._frames]
    watcher._frames.clear()
    return frames


def send(feed: WatchFeed, now: float) -> None:
    assert feed._picture is not None, "nobody watches"
    feed.send_frame(feed._picture, now)


async def test_frames_follow_workers_that_join_drain_and_leave() -> None:
    cluster, router = make_cluster(), Router()
    first, loop = join_worker(cluster, name="first:1")
    feed = WatchFeed(cluster)
    add_request(cluster, router, 1)
    add_request(cluster, router, 2)
    with feed.joined() as watcher:
        send(feed, 0.0)
        (full,) = waiting(watcher)
        assert full.is_full
        assert full.num_waiting == 2
        (worker,) = full.workers
        assert (worker.description.address, worker.description.num_gpu_blocks) == ("first:1", 64)

        loop.now = 2.0  # the second request arrives then
        turn(cluster, loop)
        turn(cluster, loop)
        second, _ = join_worker(cluster, name="second:1")
        cluster.drain(first)
        send(feed, 1.0)
        send(feed, 2.0)
        (frame,) = waiting(watcher)  # what did not change since is not told again
        assert not frame.is_full
        assert (frame.HasField("num_waiting"), frame.num_waiting) == (True, 0)
        worker, new = frame.workers
        assert worker.description.is_draining
        assert new.description.address == "second:1"
        prefill, decode = worker.steps
        assert int32_list(prefill.prefill_num_tokens) == [5, 5]
        assert len(int64_list(prefill.prefill_seq_ids)) == 2
        assert (prefill.num_decodes, prefill.num_tokens) == (0, 10)
        assert (decode.step_id, decode.num_decodes, decode.num_tokens) == (2, 2, 2)
        arrivals = [one.arrived_at_ns for one in worker.new_sequences]
        assert arrivals == [1_000_000_000, 2_000_000_000]
        first_tokens = [prefill.answered_at_ns - at for at in arrivals]
        assert int64_list(prefill.first_token_ns) == first_tokens
        assert not decode.first_token_ns

        cluster.leave(first)
        send(feed, 3.0)
        (frame,) = waiting(watcher)
        assert list(frame.left_workers) == [worker.number]
        assert frame.num_waiting == 2
        assert second.scheduler.observer is not UNOBSERVED
        send(feed, 4.0)
    for scheduler in (first.scheduler, second.scheduler):
        assert scheduler.observer is UNOBSERVED
    cluster.check()


async def test_a_watcher_that_falls_behind_starts_again_from_a_full_picture() -> None:
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster)
    feed = WatchFeed(cluster)
    add_request(cluster, router, 1, max_tokens=100)
    with feed.joined() as slow, feed.joined() as quick:
        shown, now, num_full = Shown(), 0.0, 0
        for _ in range(3 * MAX_WAITING):
            turn(cluster, loop)
            send(feed, now := now + FRAME_S)
            (frame,) = waiting(quick)
            num_full += frame.is_full
            for worker in frame.workers:
                shown.apply(worker)
            assert len(slow._frames) <= MAX_WAITING
        assert num_full == 1
        assert shown == expected_of(loop.scheduler)
        first, *others = waiting(slow)
        assert first.is_full
        late = Shown()
        for frame in (first, *others):
            for worker in frame.workers:
                late.apply(worker)
        assert late == expected_of(loop.scheduler) or not slow.follows(HERE)
        assert not others or not any(frame.is_full for frame in others)


async def test_an_entry_of_a_table_tells_its_tokens_and_its_group() -> None:
    """Tables keep their rows, whatever has been freed behind a window."""
    groups = (FULL_GROUP, CacheGroup(kind="window", window=9))
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster, groups=groups)
    feed, shown = WatchFeed(cluster), Shown()
    add_request(cluster, router, 1, max_tokens=40)
    with feed.joined() as watcher:
        for step in range(25):
            turn(cluster, loop)
            send(feed, float(step))
            for frame in waiting(watcher):
                for worker in frame.workers:
                    shown.apply(worker)
        assert feed._picture is not None
        (worker,) = feed._picture.full(25.0).workers
    assert tuple(map(decode_group, worker.description.groups)) == groups
    late = Shown()
    late.apply(worker)
    assert late == shown == expected_of(loop.scheduler)
    ((*_, num_computed),), (table,) = shown.sequences.values(), shown.tables.values()
    size = worker.description.block_size
    for column, group in enumerate(groups):
        first = group.first_block(num_computed, block_size=size)
        kept = [row for row, one in enumerate(table[column::2]) if one != NO_BLOCK]
        assert kept == [*range(first, len(table) // 2)]
        assert bool(first) == (group is not FULL_GROUP)


@pytest.mark.parametrize("content", [{}, {"kind": 7}])
async def test_frames_do_not_depend_on_what_is_said(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, answers, and names that clients choose, leave no trace in any frame."""
    frames = {}
    for kind, name in ((1, "a"), (90, "secret")):
        monkeypatch.setattr(sequence_ids, "next", 1)
        cluster, router = make_cluster(), Router()
        _, loop = join_worker(cluster, num_gpu_blocks=9, num_cpu_blocks=9)
        feed = WatchFeed(cluster)
        for handle in range(4):
            group = make_arrival(
                [kind + handle] * 6,
                reply_to=router,
                handle=handle,
                request_id=f"{name}{handle}",
                tenant=name,
                cache_salt=name,
                max_tokens=9,
            )
            assert cluster.requests.add(group)
        with feed.joined() as watcher:
            frames[name] = []
            for step in range(30):
                turn(cluster, loop)
                send(feed, float(step))
                frames[name] += waiting(watcher)
        assert len(router.ended) == 4
    assert len(frames["a"]) > 10
    assert frames["a"] == frames["secret"]
    assert not any(b"secret" in frame.SerializeToString() for frame in frames["secret"])


async def test_frames_count_the_answers_that_audits_found_wrong() -> None:
    cluster = make_cluster()
    feed = WatchFeed(cluster)
    with feed.joined() as watcher:
        send(feed, 0.0)
        (full,) = waiting(watcher)
        assert full.num_wrong == 0
        cluster.audits.log.num_different[AuditSource.STORE] += 1
        send(feed, 0.5)
        (frame,) = waiting(watcher)
        assert (frame.is_full, frame.num_wrong) == (False, 1)
