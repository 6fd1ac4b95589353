"""Random histories of one or two workers: invariants after every step, exact output at the end."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.beam import BeamSearchParams
from scheduler_svc.config import POLICIES, PolicyConfig, PreemptionMode
from scheduler_svc.policy import make_policy
from scheduler_svc.sequence import FinishReason, SequenceGroup, SequenceStatus
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler
from tests.scheduler_svc.test_beam_groups import assert_found

SEARCHES = [
    BeamSearchParams(width=2),
    BeamSearchParams(width=3, early_stopping=True),
    BeamSearchParams(width=4, length_penalty=0.0),
]
CAPACITY = {"num_gpu_blocks": 14, "max_num_seqs": 6, "max_num_batched_tokens": 10}


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, plans, answers, aborts, stops and loses workers in any order."""

    @initialize(
        mode=st.sampled_from(PreemptionMode),
        num_cpu_blocks=st.sampled_from([0, 3, 20]),
        num_workers=st.sampled_from([1, 2]),
        depth=st.sampled_from([1, 2]),
        watermark=st.sampled_from([0.0, 0.1]),
        prefix_caching=st.booleans(),
        policy=st.sampled_from(POLICIES),
    )
    def start(
        self,
        mode: PreemptionMode,
        num_cpu_blocks: int,
        num_workers: int,
        depth: int,
        watermark: float,
        prefix_caching: bool,
        policy: str,
    ) -> None:
        self.admission = AdmissionQueue(make_policy(PolicyConfig(name=policy, ageing_s=3.0)))
        self.options = {
            "mode": mode,
            "num_cpu_blocks": num_cpu_blocks,
            "watermark": watermark,
            "prefix_caching": prefix_caching,
        }
        self.depth = depth
        self.groups: list[SequenceGroup] = []
        self.aborted: set[SequenceGroup] = set()
        self.stopped: dict[tuple[SequenceGroup, int], int] = {}
        self.ended: list[SequenceGroup] = []
        self.loops = [self.make_loop() for _ in range(num_workers)]

    def make_loop(self) -> Loop:
        scheduler = make_scheduler(admission=self.admission, **CAPACITY, **self.options)
        return make_loop(scheduler, depth=self.depth)

    @property
    def live(self) -> list[SequenceGroup]:
        gone = {*self.aborted, *self.ended, *(g for loop in self.loops for g in loop.ended)}
        return [group for group in self.groups if group not in gone]

    @rule(
        prompt_len=st.integers(1, 14),
        max_tokens=st.integers(1, 12),
        n=st.sampled_from([1, 1, 2, 3]),
        stops=st.booleans(),
        kind=st.integers(1, 3),
        tenant=st.sampled_from(["", "", "other"]),
        salt=st.sampled_from(["", "", "other"]),
        beam_search=st.sampled_from([None, None, *SEARCHES]),
        priority=st.integers(-2, 2),
    )
    def submit(
        self,
        prompt_len: int,
        max_tokens: int,
        n: int,
        stops: bool,
        kind: int,
        tenant: str,
        salt: str,
        beam_search: BeamSearchParams | None,
        priority: int,
    ) -> None:
        group = make_request(
            [kind] * prompt_len,
            tenant=tenant,
            priority=priority,
            cache_salt=salt,
            max_tokens=max_tokens,
            n=n if beam_search is None else min(n, beam_search.width),
            beam_search=beam_search,
            arrival=float(len(self.groups)),
            stop_token_ids=(3, 14, 15, 92, 65) if stops else (),
        )
        if self.loops[0].scheduler.blocks.can_ever_hold(group):
            self.groups.append(group)
            self.admission.add(group)

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.loops)).send()

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.loops)).answer()

    @rule(data=st.data(), times=st.integers(1, 6))
    def step(self, data: st.DataObject, times: int) -> None:
        loop = data.draw(st.sampled_from(self.loops))
        for _ in range(times):
            loop.send()
            loop.answer()

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

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.live))
        seq = data.draw(st.sampled_from(group.unfinished))
        loops = [loop for loop in self.loops if loop.scheduler.holds(group)]
        if not loops or group.awaits_answers or not seq.output_token_ids:
            return
        keep = data.draw(st.integers(1, len(seq.output_token_ids)))
        self.stopped[group, seq.branch] = keep
        if loops[0].scheduler.stop_sequence(group, index=seq.branch, keep_tokens=keep):
            self.ended.append(group)

    @rule(data=st.data())
    def lose_worker(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.loops) - 1))
        lost = self.loops[index]
        self.ended += lost.ended
        for group in lost.scheduler.evacuate():
            self.admission.add(group)
        self.loops[index] = self.make_loop()

    @invariant()
    def blocks_are_conserved_and_groups_are_in_one_queue(self) -> None:
        queued = list(self.admission)
        for loop in self.loops:
            loop.scheduler.check()
            queued += loop.scheduler.running + loop.scheduler.swapped
        assert len(queued) == len(set(queued))
        assert set(queued) == set(self.live)

    @invariant()
    def tenants_and_salts_share_no_block(self) -> None:
        for loop in self.loops:
            for groups in (loop.scheduler.running, loop.scheduler.swapped):
                owner_of: dict[int, tuple[str, str]] = {}
                for group in groups:
                    owner = (group.tenant, group.cache_salt)
                    for seq in group.sequences:
                        for block in seq.block_table:
                            assert owner_of.setdefault(block, owner) == owner

    def teardown(self) -> None:
        for _ in range(4):  # what one loop sets back another may take
            for loop in self.loops:
                loop.run()
        assert not self.live
        ended = self.ended + [group for loop in self.loops for group in loop.ended]
        assert sorted(map(id, ended)) == sorted(id(g) for g in self.groups if g not in self.aborted)
        for loop in self.loops:
            scheduler = loop.scheduler
            scheduler.check()
            assert scheduler.blocks.gpu.num_free == scheduler.blocks.gpu.num_blocks
            assert scheduler.blocks.cpu.num_free == scheduler.blocks.cpu.num_blocks
        for group in ended:
            self.assert_output(group)

    def assert_output(self, group: SequenceGroup) -> None:
        assert group.failure is None
        assert [seq.branch for seq in group.sequences] == list(range(group.num_sequences))
        if group.search is not None:
            assert_found(group)
            return
        for seq in group.sequences:
            tokens = seq.output_token_ids
            assert seq.status is SequenceStatus.FINISHED
            assert tokens == expected(
                group.prompt_token_ids, num_tokens=len(tokens), branch=seq.branch
            )
            if seq.finish_reason is FinishReason.LENGTH:
                assert len(tokens) == group.max_tokens
            if seq.finish_reason is FinishReason.STOP_STRING:
                assert len(tokens) == self.stopped[group, seq.branch]


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=1000, stateful_step_count=40, deadline=None)
