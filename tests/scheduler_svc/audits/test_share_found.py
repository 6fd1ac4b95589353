"""How soon audits find a fault that a tenth of the requests meet."""

import random
from dataclasses import dataclass

import pytest

from signalbox_scheduler.audits.choice import SampledAudits
from tests.scheduler_svc.audits.auditing import Auditing
from tests.scheduler_svc.fake_worker import VOCAB_SIZE, Drawn, FakeWorker, Known
from tests.scheduler_svc.make import Loop
from tests.scheduler_svc.routers import turn

NUM_RUNS, NUM_AUDITS = 1000, 29
SHARE_MET, SHARE_FOUND = 0.1, 0.93
"""Of the requests, and of the runs: 1 - 0.9**29 is 0.953."""


@dataclass(slots=True)
class FaultyWorker(FakeWorker):
    """Draws the token behind the right one while it is faulty."""

    is_faulty: bool = False

    def _add_draw(self, known: Known, context: list[int], token_id: int, drawn: Drawn) -> None:
        wrong = (token_id + self.is_faulty) % VOCAB_SIZE
        FakeWorker._add_draw(self, known, context, wrong, drawn)


def is_found(auditing: Auditing, loop: Loop, worker: FaultyWorker, seed: int) -> bool:
    """Asks until the fault is found, or so many answers are audited."""
    rng, log = random.Random(f"faults {seed}"), auditing.log
    assert isinstance(auditing.cluster.audits, SampledAudits)
    auditing.cluster.audits._random.seed(seed)
    auditing.findings.clear()
    ends_at = log.num_chosen + NUM_AUDITS
    while log.num_chosen < ends_at and not auditing.findings:
        group = auditing.add([seed % VOCAB_SIZE], max_tokens=1)
        worker.is_faulty = rng.random() < SHARE_MET
        while not group.is_finished:
            turn(auditing.cluster, loop)
        has_met, worker.is_faulty = worker.is_faulty, False
        while turn(auditing.cluster, loop):
            pass
        assert has_met or not auditing.findings
    return bool(auditing.findings)


@pytest.mark.slow
def test_a_fault_that_a_tenth_meets_is_found_soon(
    auditing: Auditing, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = auditing.join("a")
    loop.worker = worker = FaultyWorker(loop.worker.block_size)
    num_found = sum(is_found(auditing, loop, worker, seed) for seed in range(NUM_RUNS))
    assert num_found >= SHARE_FOUND * NUM_RUNS
