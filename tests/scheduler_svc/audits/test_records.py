"""What an answer's record says of it, and which answers have none."""

import math

import pytest

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_scheduler.audits.choice import MAX_AGE_S, MAX_RECORDS, SampledAudits
from signalbox_scheduler.audits.finding import AuditSource, DropReason
from signalbox_scheduler.audits.record import origin_of, record_of
from signalbox_scheduler.requests.drawn_logits import DrawnLogits
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from tests.scheduler_svc.audits.auditing import Auditing
from tests.scheduler_svc.fake_logits import ARITHMETIC
from tests.scheduler_svc.make import make_request, make_scheduler

MOVED = MoveResult(move_id=1, num_blocks=3, num_bytes=96, duration_ns=1, failed="")


def go_through(group: SequenceGroup, kinds: str) -> None:
    """Adds events: s store, p peer, f failed, w swap, m migration, c swap space, r recompute."""
    timeline = group.timeline
    for kind in kinds:
        match kind:
            case "s":
                timeline.moved_blocks(EventKind.FETCHED, 1.0, MOVED, store="disk")
            case "p":
                timeline.moved_blocks(EventKind.FETCHED, 1.0, MOVED, source="peer:1")
            case "f":
                timeline.moved_blocks(
                    EventKind.FETCHED, 1.0, MOVED._replace(num_blocks=0), store="disk"
                )
            case "w":
                timeline.add(EventKind.PREEMPTED, 1.0, is_swap=True)
                timeline.add(EventKind.RESUMED, 1.0, is_swap=True)
            case "m":
                timeline.worker = "b"
                timeline.add(EventKind.MIGRATED, 1.0)
            case "r":
                timeline.add(EventKind.PREEMPTED, 1.0)
            case "c":
                group.num_cpu_cached_tokens += 4


@pytest.mark.parametrize(
    ("kinds", "source", "suspect"),
    [
        ("", AuditSource.WORKER, "b"),
        ("rf", AuditSource.WORKER, "b"),
        ("mr", AuditSource.MIGRATION, "b"),
        ("mw", AuditSource.SWAP, "b"),
        ("mc", AuditSource.SWAP, "b"),
        ("wpm", AuditSource.PEER, "peer:1"),
        ("psw", AuditSource.STORE, "disk"),
    ],
)
def test_the_least_trusted_source_is_suspected(
    kinds: str, source: AuditSource, suspect: str
) -> None:
    group = make_request([1] * 8)
    go_through(group, kinds)
    origin = origin_of(group, ("a", "b"))
    assert (origin.source, origin.suspect) == (source, suspect)


def test_a_history_says_all_that_an_answer_went_through() -> None:
    group = make_request([1] * 8)
    group.num_cached_tokens = 4
    group.timeline.worker = "b"
    go_through(group, "spwwcmr")
    assert origin_of(group, ("a", "b")).history == (
        "was computed by a and b, got 3 blocks from the disk store, got 3 blocks from peer:1,"
        " found 4 tokens of its prompt cached, found 4 tokens in swap space, was swapped out and in"
        " 2 times, was recomputed after a preemption, migrated"
    )


def test_runs_are_kept_as_far_as_their_tokens_were_accepted() -> None:
    logits = DrawnLogits()
    logits.add(0, [1.0, 2.0, 3.0], num_known=2)
    logits.add(0, [4.0], num_known=2)
    assert logits.by_branch == {0: [1.0, 2.0]}
    logits.add(0, [6.0], num_known=4)  # a step has said nothing
    assert logits.by_branch[0][3:] == [6.0]
    assert math.isnan(logits.by_branch[0][2])


def test_a_long_answer_is_not_audited(auditing: Auditing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signalbox_scheduler.audits.record.MAX_TOKENS", 20)
    auditing.join("a")
    auditing.add([1] * 15, max_tokens=5)
    auditing.add([2] * 15, max_tokens=6)
    auditing.run()
    assert auditing.log.num_equal == 1
    assert auditing.log.num_dropped == {DropReason.LONG: 1}


def test_a_request_that_has_not_ended_has_no_record() -> None:
    assert record_of(make_request([1]), DrawnLogits(), 1.0) is DropReason.FAILED_REQUEST


def test_records_are_bounded_and_leave_when_they_are_late(auditing: Auditing) -> None:
    auditing.join("a")
    other = auditing.join("b")
    for kind in range(MAX_RECORDS + 3):
        auditing.add([kind] * 5, max_tokens=2)
    auditing.run("a")
    assert auditing.log.num_chosen == MAX_RECORDS
    auditing.now = other.now = MAX_AGE_S + 1.0
    auditing.run("b")
    assert auditing.log.num_dropped == {DropReason.LATE: MAX_RECORDS}
    auditing.add([1] * 5, max_tokens=2)
    auditing.run()
    assert auditing.log.num_chosen == MAX_RECORDS + 1
    assert auditing.log.num_equal == 1


def test_a_replay_chooses_the_same_requests() -> None:
    scheduler = make_scheduler(arithmetic=ARITHMETIC)

    def chosen() -> list[int]:
        audits = SampledAudits(0.01)
        audits.join(scheduler.state, lambda: None)
        groups = [make_request([1] * 8) for _ in range(12)]
        for group in groups:
            audits.choose(group, 0.0)
        return [i for i, group in enumerate(groups) if group.logits is not None]

    assert chosen() == chosen()
    assert 0 < len(chosen()) < 12
