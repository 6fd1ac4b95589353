"""Steps of audits are short, and audits take the share of a worker's time that they may."""

import pytest

from signalbox_scheduler.audits.finding import DropReason
from signalbox_scheduler.audits.pace import (
    AIM_S,
    MAX_CREDIT_S,
    MAX_SLOW_STEPS,
    MAX_STEP_S,
    SLOW_S,
    Allowance,
    Pace,
)
from tests.scheduler_svc.audits.auditing import Auditing

ROW_S = 0.002


@pytest.mark.parametrize("rate", [0.0, 10.0, 500.0, 1e6])
def test_steps_come_to_take_what_they_may(rate: float) -> None:
    pace, seconds = Pace.of_rate(rate), []
    for step in range(20):
        seconds.append(ROW_S * pace.most_rows)
        pace.observe(pace.most_rows, seconds[-1], float(step))
    assert all(AIM_S / 2 <= one <= MAX_STEP_S for one in seconds[8:])
    assert not pace.is_too_slow(20.0)


def test_a_worker_that_takes_too_long_for_one_row_is_left_alone_for_a_while() -> None:
    pace = Pace(most_rows=1)
    for _ in range(MAX_SLOW_STEPS - 1):
        pace.observe(1, 2 * MAX_STEP_S, 3.0)
    pace.observe(1, MAX_STEP_S / 2, 3.0)  # one that had to wait for its core says nothing
    assert not pace.is_too_slow(3.0)
    for _ in range(MAX_SLOW_STEPS):
        pace.observe(1, 2 * MAX_STEP_S, 4.0)
    assert pace.is_too_slow(4.0)
    assert not pace.is_too_slow(4.0 + SLOW_S)


def test_what_an_audit_takes_is_paid_back_before_the_next() -> None:
    allowance = Allowance(share=0.1)
    assert allowance.wait_s(50.0) == 0.0
    allowance.spend(3.0)
    assert allowance.wait_s(50.0) == pytest.approx(30.0)
    assert allowance.wait_s(70.0) == pytest.approx(10.0)
    assert allowance.wait_s(80.1) == 0.0
    assert allowance.wait_s(1e6) == 0.0
    allowance.spend(MAX_CREDIT_S + 1.0)  # no more is saved up
    assert allowance.wait_s(1e6) == pytest.approx(10.0)


def test_audits_take_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    auditing = Auditing(monkeypatch, audit_cpu=0.02)
    loop = auditing.join("a", max_draft_tokens=3)
    loop.step_s, steps, num_requests = 0.0, auditing.steps["a"], 0
    while loop.now < 20.0:
        auditing.now = loop.now
        if loop.now >= 0.5 * num_requests:
            auditing.add([num_requests % 90] * 9, max_tokens=8)
            num_requests += 1
        if loop.send() or loop.sent:
            loop.now += 0.01
            outcome = loop.answer()
            assert outcome is not None
            auditing.cluster.requests.send_updates(outcome)
        else:
            loop.now = min(loop.now + 0.2, steps.next_poll_at)
    most_s = 12 * 0.01  # of one audit
    assert 0.01 * loop.now <= auditing.log.seconds <= 0.02 * loop.now + most_s
    assert auditing.log.num_equal > 5
    assert not auditing.findings


def test_a_driver_is_woken_when_an_audit_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    auditing = Auditing(monkeypatch, audit_cpu=0.1)
    loop = auditing.join("a")
    steps = auditing.steps["a"]
    for _ in range(2):
        auditing.add([1] * 5, max_tokens=2)
    while loop.send() or loop.sent:
        loop.now += 0.01
        outcome = loop.answer()
        assert outcome is not None
        auditing.cluster.requests.send_updates(outcome)
    assert auditing.log.num_equal == 1
    due_at = steps.next_poll_at
    assert loop.now < due_at == pytest.approx(loop.now + 10 * auditing.log.seconds, abs=0.1)
    loop.now = due_at
    auditing.run()
    auditing.assert_all_equal(2)


def test_a_worker_that_is_too_slow_drops_its_audit(auditing: Auditing) -> None:
    loop = auditing.join("a", max_draft_tokens=3)
    for _ in range(2):
        auditing.add([1] * 9)
    while loop.send() or loop.sent:
        loop.now += 2 * MAX_STEP_S
        outcome = loop.answer()
        assert outcome is not None
        auditing.cluster.requests.send_updates(outcome)
    assert auditing.log.num_dropped == {DropReason.SLOW: 1}
    loop.now += SLOW_S
    auditing.now = loop.now
    auditing.run()
    assert auditing.log.num_dropped[DropReason.LATE] == 1  # it waited in vain
    auditing.add([1] * 9)
    auditing.run()
    assert auditing.log.num_equal == 1
    auditing.assert_idle()
