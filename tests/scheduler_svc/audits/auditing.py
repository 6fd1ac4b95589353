"""Builders for tests of audits: a cluster that audits each request, and what it plans."""

from typing import Any

import pytest

from signalbox_contract.step import NewSequence
from signalbox_scheduler.audits import choice
from signalbox_scheduler.audits.finding import AuditFinding, AuditLog
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from tests.scheduler_svc.fake_logits import ARITHMETIC
from tests.scheduler_svc.make import Loop, join_worker, make_arrival, make_cluster
from tests.scheduler_svc.routers import Router, turn

STEP_S = 0.001


class Auditing:
    """A cluster, its workers by name, and one router."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, audit_cpu: float = 1.0) -> None:
        monkeypatch.setattr(choice, "CHANCE", 1.0)
        self.now = 0.0
        self.cluster: Cluster = make_cluster(
            audit_cpu=audit_cpu, worker_wait_s=100.0, clock=lambda: self.now
        )
        self.router = Router()
        self.loops: dict[str, Loop] = {}
        self.steps: dict[str, StepLoop] = {}
        self.plans: list[tuple[str, StepPlan]] = []
        """Plans that were sent, with the name of the worker."""
        self.new: list[NewSequence] = []
        """Sequences that audits have sent in full."""
        self.findings: list[AuditFinding] = []
        self.log.listeners.append(self.findings.append)
        self._monkeypatch = monkeypatch
        self._num_requests = 0

    def join(self, name: str, **options: Any) -> Loop:
        options = {"arithmetic": ARITHMETIC} | options
        self.steps[name], loop = join_worker(self.cluster, name=name, **options)
        loop.step_s, loop.worker.draft_kinds = STEP_S, "g"
        self.loops[name] = loop
        schedule = loop.scheduler.schedule

        def recorded(now: float) -> StepPlan | None:
            plan = schedule(now)
            if plan is not None:
                self.plans.append((name, plan))
                self.new += plan.to_step(epoch=1).new if plan.is_audit else ()
            return plan

        self._monkeypatch.setattr(loop.scheduler, "schedule", recorded)
        return loop

    def add(self, prompt: list[int], **fields: Any) -> SequenceGroup:
        self._num_requests += 1
        number = self._num_requests
        group = make_arrival(
            prompt,
            reply_to=self.router,
            arrival=self.now,
            handle=number,
            **{"request_id": f"r{number}"} | fields,
        )
        assert self.cluster.requests.add(group), self.router.ended
        return group

    def run(self, *names: str) -> None:
        """Runs steps of these workers, or of all, until none is left."""
        loops = [self.loops[name] for name in names or self.loops]
        while sum(turn(self.cluster, loop) for loop in loops):
            self.cluster.check()

    @property
    def log(self) -> AuditLog:
        return self.cluster.audits.log

    @property
    def audited_by(self) -> list[str]:
        """Workers that have computed steps of audits, each once."""
        return list(dict.fromkeys(name for name, plan in self.plans if plan.is_audit))

    def assert_all_equal(self, number: int) -> None:
        assert (self.log.num_equal, self.findings) == (number, [])
        assert self.log.num_chosen == number
        self.assert_idle()

    def assert_idle(self) -> None:
        self.cluster.check()
        assert not len(self.cluster.requests)
        for loop in self.loops.values():
            assert loop.scheduler.blocks.gpu.num_free == loop.scheduler.blocks.gpu.num_blocks
