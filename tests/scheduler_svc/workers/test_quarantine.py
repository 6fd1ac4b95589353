"""How long a worker that fails again and again has to pause, and when that is forgotten."""

from signalbox_scheduler.workers.quarantine import (
    FORGET_S,
    MAX_FAILURES,
    MAX_RECORDS,
    WorkerRecords,
)
from tests.clock import Clock


def make_records(*, max_pause_s: float = 10.0) -> tuple[WorkerRecords, Clock]:
    clock = Clock(1000.0)
    return WorkerRecords(max_pause_s=max_pause_s, clock=clock), clock


def fail(records: WorkerRecords, worker: str = "a", *, times: int = 1) -> None:
    for _ in range(times):
        records.count(records.loss_of(worker))


def pause_of(records: WorkerRecords, worker: str = "a") -> float:
    quarantine = records.quarantine(worker)
    return 0.0 if quarantine is None else quarantine.pause_s


def test_pauses_begin_with_the_second_failure_and_double_up_to_the_bound() -> None:
    records, _ = make_records()
    pauses = []
    for _ in range(7):
        fail(records)
        pauses.append(pause_of(records))
    assert pauses == [0, 1, 2, 4, 8, 10, 10]
    assert pause_of(records, "b") == 0


def test_a_pause_ends_and_its_worker_is_no_longer_listed() -> None:
    records, clock = make_records()
    fail(records, times=3)
    fail(records, "b")
    assert [(one.worker, one.num_failures, one.left_s) for one in records.quarantined()] == [
        ("a", 3, 2.0)
    ]
    clock.now += 1.5
    assert [one.left_s for one in records.quarantined()] == [0.5]
    clock.now += 0.5
    assert list(records.quarantined()) == []
    assert records.num_failures_of("a") == 3  # the next one costs more


def test_failures_are_forgotten() -> None:
    records, clock = make_records()
    fail(records, times=4)
    clock.now += FORGET_S
    assert records.num_failures_of("a") == 0
    fail(records)
    assert pause_of(records) == 0


def test_a_bound_of_zero_lets_every_worker_join_at_once() -> None:
    records, _ = make_records(max_pause_s=0.0)
    fail(records, times=9)
    assert records.quarantine("a") is None
    assert records.num_failures_of("a") == 9


def test_a_loss_that_is_forgiven_ends_the_quarantine_that_it_has_caused() -> None:
    records, _ = make_records()
    fail(records)
    loss = records.loss_of("a")
    records.count(loss)
    assert pause_of(records) == 1
    records.forgive(loss)
    records.forgive(records.loss_of("b"))  # never counted
    assert pause_of(records) == 0
    assert records.num_failures_of("a") == 1


def test_records_of_many_workers_and_of_many_failures_are_bounded() -> None:
    records, _ = make_records()
    for number in range(MAX_RECORDS + 10):
        fail(records, f"worker{number}")
    fail(records, "b", times=MAX_FAILURES + 10)
    assert records.num_workers == MAX_RECORDS
    assert records.num_failures_of("worker0") == 0
    assert records.num_failures_of("b") == MAX_FAILURES
