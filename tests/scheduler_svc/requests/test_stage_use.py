"""What the stages of a worker have computed while a request was there."""

from signalbox_contract.model import WorkerRank
from signalbox_contract.step_result import StageTimings
from signalbox_scheduler.requests.stage_use import StageAccount, StageUse
from signalbox_scheduler.requests.timeline import Timeline
from signalbox_scheduler.requests.wait_accounting import WaitLedger

RANKS = (
    WorkerRank(rank=0, stage=0, tensor_parallel_rank=0, host="a", first_layer=0, num_layers=2),
)
STEP = (StageTimings(forward_ns=3, wait_ns=1),)


def schedule(timeline: Timeline, account: StageAccount) -> None:
    timeline.scheduled(WaitLedger(), 0.0, worker="w", stages=account, step_id=1, resumes=False)


def test_a_request_is_told_of_the_steps_since_its_worker_took_it() -> None:
    account, early, late = StageAccount(RANKS), Timeline(), Timeline()
    schedule(early, account)
    account.add(STEP, in_flight_ns=5)
    schedule(late, account)
    schedule(early, account)  # again, after a preemption
    account.add(STEP, in_flight_ns=7)
    assert early.stage_use() == StageUse(RANKS, (StageTimings(forward_ns=6, wait_ns=2),), 2, 12)
    assert late.stage_use() == StageUse(RANKS, STEP, 1, 7)


def test_a_request_that_moved_is_told_of_its_new_worker_alone() -> None:
    first, second, timeline = StageAccount(RANKS), StageAccount(RANKS), Timeline()
    schedule(timeline, first)
    first.add(STEP, in_flight_ns=5)
    timeline.moved(1.0, is_lost=True)
    assert not timeline.stage_use().ranks
    schedule(timeline, second)
    second.add(STEP, in_flight_ns=7)
    assert timeline.stage_use() == StageUse(RANKS, STEP, 1, 7)


def test_a_worker_of_one_rank_has_no_stages() -> None:
    timeline = Timeline()
    schedule(timeline, StageAccount())
    assert not timeline.stage_use().ranks
