"""Random histories of one or two workers that pool: invariants after each step, exact vectors.

EXAMPLES=20000 python -m pytest tests/scheduler_svc/test_pooling_state_machine.py
"""

import os
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from signalbox_contract.updates import FinishReason
from signalbox_scheduler.config import PolicyName, PolicySettings
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.policies import make_policy
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.workers.loss_attribution import record_loss
from signalbox_scheduler.workers.quarantine import WorkerRecords
from tests.scheduler_svc.make import Loop, assert_all_free
from tests.scheduler_svc.pooling import (
    MODELS,
    has_its_vector,
    make_pooling_loop,
    make_pooling_request,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0 if "EXAMPLES" in os.environ else 3600)]


class PoolingMachine(RuleBasedStateMachine):
    """Submits, plans, answers, aborts and loses workers in any order."""

    @initialize(
        name=st.sampled_from(sorted(MODELS)),
        num_gpu_blocks=st.sampled_from([9, 14, 30]),
        num_workers=st.sampled_from([1, 2]),
        depth=st.sampled_from([1, 2, 4]),
        watermark=st.sampled_from([0.0, 0.1]),
        policy=st.sampled_from(PolicyName),
        max_adapters=st.sampled_from([None, 1, 2]),
    )
    def start(self, name: str, num_workers: int, depth: int, policy: str, **options: Any) -> None:
        self.admission = AdmissionQueue(
            make_policy(PolicySettings(scheduling_policy=policy, priority_aging_s=3.0))
        )
        self.admission.adapters = frozenset("xyz")
        self.model, self.depth, self.options = MODELS[name], depth, options
        self.groups: list[SequenceGroup] = []
        self.aborted: set[SequenceGroup] = set()
        self.lost: list[Loop] = []
        self.records = WorkerRecords()
        self.loops = [self.make_loop() for _ in range(num_workers)]

    def make_loop(self) -> Loop:
        return make_pooling_loop(
            self.model,
            depth=self.depth,
            admission=self.admission,
            max_num_seqs=6,
            max_num_batched_tokens=12,
            num_stages=max(1, self.depth - 1),
            **self.options,
        )

    @property
    def live(self) -> list[SequenceGroup]:
        ended = {group for loop in self.loops + self.lost for group in loop.ended}
        return [group for group in self.groups if group not in ended | self.aborted]

    @rule(
        lengths=st.lists(st.sampled_from([1, 2, 5, 8, 11, 12, 13, 24, 36]), min_size=1, max_size=5),
        kind=st.integers(1, 3),
        tenant=st.sampled_from(["", "", "other"]),
        adapter=st.sampled_from(["", "", *"xyz"]),
        priority=st.integers(-2, 2),
    )
    def submit(self, lengths: list[int], kind: int, **fields: Any) -> None:
        for length in lengths:
            arrival = float(len(self.groups))
            group = make_pooling_request([kind] * length, arrival=arrival, **fields)
            assert self.loops[0].scheduler.blocks.sizes.can_ever_hold(group)
            self.groups.append(group)
            self.admission.add(group)

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.loops)).send()

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.loops)).answer()

    @rule(data=st.data(), times=st.integers(2, 8))
    def step_often(self, data: st.DataObject, times: int) -> None:
        loop = data.draw(st.sampled_from(self.loops))
        loop.turn(times)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.live))
        self.aborted.add(group)
        if group in self.admission:
            self.admission.remove(group)
            return
        (loop,) = (loop for loop in self.loops if loop.scheduler.holds(group))
        loop.scheduler.abort(group)

    @rule(data=st.data())
    def lose_worker(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.loops) - 1))
        lost = self.loops[index]
        self.lost.append(lost)
        record_loss(self.records, lost.scheduler)
        for group in lost.scheduler.evacuate():
            if group.suspicion is not None and group.suspicion.is_proven:
                self.aborted.add(group)
            else:
                self.admission.add(group)
        self.loops[index] = self.make_loop()

    @invariant()
    def blocks_are_conserved_and_groups_are_in_one_queue(self) -> None:
        queued = list(self.admission)
        for loop in self.loops:
            loop.scheduler.check()
            assert not loop.scheduler.preemption.num_preemptions
            queued += loop.scheduler.running
        assert len(queued) == len(set(queued))
        assert set(queued) == set(self.live)

    def teardown(self) -> None:
        for loop in self.loops:
            loop.run()
        assert not self.live
        for loop in self.loops:
            assert_all_free(loop)
        for loop in self.loops + self.lost:
            for group in loop.ended:
                (seq,) = group.sequences
                assert (group.failure, seq.finish_reason) == (None, FinishReason.STOP)
                assert has_its_vector(group, loop)
            assert loop.pooled.keys() == set(loop.ended)


TestPooling = PoolingMachine.TestCase
TestPooling.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "100")), stateful_step_count=40
)
