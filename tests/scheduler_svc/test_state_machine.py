"""Random histories of one or two workers: invariants after every step, exact output at the end.

EXAMPLES=20000 python -m pytest tests/scheduler_svc/test_state_machine.py
"""

import itertools
import os
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup, state_group
from signalbox_contract.model import StoreCapacity
from signalbox_contract.request import BeamSearchParams
from signalbox_contract.updates import FinishReason
from signalbox_scheduler.audits.choice import Audits, SampledAudits
from signalbox_scheduler.config import PolicyName, PolicySettings, PreemptionMode
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.policies import make_policy
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus
from signalbox_scheduler.requests.sequence_ids import sequence_ids
from signalbox_scheduler.workers.loss_attribution import record_loss
from signalbox_scheduler.workers.quarantine import WorkerRecords
from tests.scheduler_svc.beams import assert_found
from tests.scheduler_svc.fake_logits import ARITHMETIC
from tests.scheduler_svc.fake_store import Ending
from tests.scheduler_svc.fake_worker import Block, expected
from tests.scheduler_svc.make import (
    Loop,
    content_of,
    is_moving,
    make_loop,
    make_request,
    make_scheduler,
)
from tests.scheduler_svc.watching import WorkerWatcher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0 if "EXAMPLES" in os.environ else 3600)]

SEARCHES = [
    BeamSearchParams(width=2),
    BeamSearchParams(width=3, early_stopping=True),
    BeamSearchParams(width=4, length_penalty=0.0),
]
BLOCK_SIZE = 4
CAPACITY = {"max_num_seqs": 6, "max_num_batched_tokens": 24, "prefill_spread_steps": 2}
COSTS = {  # at most two evicted blocks are kept in a step of a slow worker
    "fast": {},
    "slow": {"block_bytes": 2, "copy_bytes_per_s": 1000.0, "prefill_tokens_per_s": 10.0},
    "useless": {"block_bytes": 2, "copy_bytes_per_s": 1.0, "prefill_tokens_per_s": 1000.0},
}
OF_SEVERAL_KINDS = [
    (CacheGroup(kind="window", window=6),),
    (FULL_GROUP, CacheGroup(kind="window", window=5)),
    (CacheGroup(kind="window", window=9), FULL_GROUP, CacheGroup(kind="window", window=4)),
    (FULL_GROUP, CacheGroup(kind="state", state_blocks=1)),
    (FULL_GROUP, CacheGroup(kind="state", state_blocks=3)),
    (CacheGroup(kind="window", window=6), FULL_GROUP, CacheGroup(kind="state", state_blocks=2)),
]
MEMORY_STORE = StoreCapacity(kind="memory")
BOUNDED_STORE = StoreCapacity(kind="disk", read_bytes_per_s=1e4, max_write_bytes_per_s=8)
ENDINGS = st.builds(
    Ending,
    num_steps=st.sampled_from([0, 1, 3]),
    most=st.sampled_from([100, 100, 1, 2, 0]),
    failed=st.sampled_from(["", "", "input/output error"]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, plans, answers, aborts, stops and loses workers in any order."""

    @initialize(
        mode=st.sampled_from(PreemptionMode),
        num_gpu_blocks=st.sampled_from([7, 9, 14]),
        num_cpu_blocks=st.sampled_from([20, 8, 3, 0]),
        num_workers=st.sampled_from([1, 2]),
        depth=st.sampled_from([1, 2, 4]),
        watermark=st.sampled_from([0.0, 0.1]),
        prefix_caching=st.sampled_from([True, True, False]),
        cpu_prefix_cache=st.sampled_from([True, True, False]),
        costs=st.sampled_from(sorted(COSTS)),
        policy=st.sampled_from(PolicyName),
        grammar_bytes=st.sampled_from([25 << 20, 50 << 20]),  # for three or six
        max_adapters=st.sampled_from([None, 1, 2]),
        store=st.sampled_from([MEMORY_STORE, MEMORY_STORE, BOUNDED_STORE, None]),
        endings=st.lists(ENDINGS, min_size=1, max_size=4),
        heeds_cancels=st.booleans(),
        step_s=st.sampled_from([0.01, 0.001, 1.0]),
        groups=st.sampled_from([(FULL_GROUP,), (FULL_GROUP,), *OF_SEVERAL_KINDS]),
        mask_costs=st.sampled_from([(), (0, 10**5, 10**7, 4 * 10**7, 10**8, 0, 0)]),
        max_draft_tokens=st.sampled_from([0, 3, 1, 9]),
        draft_kinds=st.sampled_from(["g", "b", "gm", "gmobn", "ngb", "n" * 9 + "gb"]),
        audit_cpu=st.sampled_from([0.0, 1.0, 0.1]),
    )
    def start(
        self,
        num_workers: int,
        depth: int,
        policy: str,
        costs: str,
        step_s: float,
        audit_cpu: float,
        **options: Any,
    ) -> None:
        sequence_ids.next = 1  # drafts of the fake workers depend on ids
        self.admission = AdmissionQueue(
            make_policy(PolicySettings(scheduling_policy=policy, priority_aging_s=3.0))
        )
        self.admission.adapters = frozenset("xyz")
        self.endings, self.heeds_cancels = options.pop("endings"), options.pop("heeds_cancels")
        self.mask_costs = options.pop("mask_costs")
        self.draft_kinds = options.pop("draft_kinds")
        self.options = options | {"num_stages": max(1, depth - 1)}
        self.groups_of_layers = options["groups"]
        if depth > 2:  # see SchedulingSettings.step_limits
            self.options["max_draft_tokens"] = 0
        self.options["num_gpu_blocks"] *= len(self.groups_of_layers)
        self.kept: dict[bytes, Block] = {}
        """What the workers' stores have, which is one, as a shared one is."""
        self.step_s = step_s
        self.costs = COSTS[costs]
        self.content: dict[bytes, Block] = {}
        self.has_beams = False  # whose blocks are not known beforehand
        self.depth = depth
        self.groups: list[SequenceGroup] = []
        self.aborted: set[SequenceGroup] = set()
        self.stopped: dict[tuple[SequenceGroup, int], int] = {}
        self.ended: list[SequenceGroup] = []
        self.records = WorkerRecords()
        self.audits = SampledAudits(audit_cpu) if audit_cpu else Audits()
        self.watchers: dict[int, WorkerWatcher] = {}  # by index of the loop
        self.loops = [self.make_loop(index) for index in range(num_workers)]

    def make_loop(self, index: int) -> Loop:
        scheduler = make_scheduler(
            block_size=BLOCK_SIZE,
            admission=self.admission,
            cost=CostModel(**self.costs),
            arithmetic=ARITHMETIC,
            worker_name=f"w{index}",
            **CAPACITY,
            **self.options,
        )
        kept = None if scheduler.config.store is None else self.kept
        loop = make_loop(scheduler, depth=self.depth, kept=kept, step_s=self.step_s)
        loop.worker.mask_costs = self.mask_costs
        loop.worker.draft_kinds = self.draft_kinds
        loop.queues_again = True
        self.audits.join(scheduler.state, lambda: None)
        if loop.worker.store is not None:
            loop.worker.store.endings = itertools.cycle(self.endings)
            loop.worker.store.heeds_cancels = self.heeds_cancels
        self.watchers[index] = WorkerWatcher(scheduler)
        return loop

    @property
    def live(self) -> list[SequenceGroup]:
        gone = {*self.aborted, *self.ended, *(g for loop in self.loops for g in loop.ended)}
        return [group for group in self.groups if group not in gone]

    @rule(
        prompt_len=st.sampled_from([13, 9, 14, 1, 5, 8]),
        max_tokens=st.integers(1, 12),
        n=st.sampled_from([1, 1, 2, 3]),
        stops=st.booleans(),
        kind=st.integers(1, 3),
        tenant=st.sampled_from(["", "", "other"]),
        cache_salt=st.sampled_from(["", "", "other"]),
        adapter=st.sampled_from(["", "", *"xyz"]),
        beam_search=st.sampled_from([None, None, *SEARCHES]),
        priority=st.integers(-2, 2),
        grammar=st.sampled_from([None, None, *"abcdefgh"]),
        positions=st.sampled_from([(), (), (4,), (5, 12), (1, 8, 9)]),
        no_speculation=st.sampled_from([False, False, False, True]),
    )
    def submit(self, kind: int, prompt_len: int, positions: tuple[int, ...], **fields: Any) -> None:
        named = tuple(one for one in positions if one <= prompt_len)
        self.add([kind] * prompt_len, snapshot_positions=named, **fields)

    def add(
        self,
        prompt: list[int],
        *,
        n: int = 1,
        stops: bool = False,
        beam_search: BeamSearchParams | None = None,
        grammar: str | None = None,
        **fields: Any,
    ) -> None:
        has_grammar = grammar is not None and beam_search is None
        group = make_request(
            prompt,
            n=n if beam_search is None else min(n, beam_search.width),
            beam_search=beam_search,
            arrival=float(len(self.groups)),
            stop_token_ids=(3, 14, 15, 92, 65) if stops else (),
            structured_output=("regex", grammar or "") if has_grammar else None,
            **fields,
        )
        if self.loops[0].scheduler.blocks.sizes.can_ever_hold(group):
            self.groups.append(group)
            self.audits.choose(group, self.now)
            self.admission.add(group)
            if beam_search is None:
                self.content |= content_of(
                    group, block_size=BLOCK_SIZE, groups=self.groups_of_layers
                )
            self.has_beams |= beam_search is not None

    @rule(
        data=st.data(),
        kinds=st.lists(st.integers(1, 4), min_size=2, max_size=4),
        prompt_len=st.sampled_from([13, 9, 5]),
        salt=st.sampled_from(["", "", "other"]),
    )
    def serve(self, data: st.DataObject, kinds: list[int], prompt_len: int, salt: str) -> None:
        """Several prompts in a row, so that those before them are evicted and wanted again."""
        for kind in kinds:
            self.add([kind] * prompt_len, max_tokens=5, cache_salt=salt)
            self.step(data, 6)

    @precondition(lambda self: any(group.is_finished for group in self.groups))
    @rule(data=st.data(), max_tokens=st.integers(1, 6))
    def go_on(self, data: st.DataObject, max_tokens: int) -> None:
        """The next turn of a conversation."""
        group = data.draw(st.sampled_from([group for group in self.groups if group.is_finished]))
        answer = data.draw(st.sampled_from(group.sequences)).output_token_ids
        request = group.request
        prompt = [*request.prompt_token_ids, *answer, 7]
        owner = {"tenant": request.tenant, "cache_salt": request.cache_salt}
        owner["adapter"] = request.adapter
        named = (*request.snapshot_positions, len(prompt) - 1)
        self.add(prompt, max_tokens=max_tokens, snapshot_positions=named, **owner)

    @property
    def now(self) -> float:
        return max(loop.now for loop in self.loops)

    @invariant()
    def answers_are_audited_once_they_have_ended(self) -> None:
        live = set(self.live)
        for group in self.groups:
            if group not in live:
                self.audits.ended(group, self.now)
        assert not self.audits.log.num_different

    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.loops)).send()

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.loops)).answer()

    @rule(data=st.data())
    def compile(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.loops)).compile()

    @rule(data=st.data(), times=st.sampled_from([8, 1, 2, 20]))
    def step_often(self, data: st.DataObject, times: int) -> None:
        self.step(data, times)

    def step(self, data: st.DataObject, times: int) -> None:
        loop = data.draw(st.sampled_from(self.loops))
        loop.turn(times)

    @rule(data=st.data(), kind=st.integers(1, 4), prompt_len=st.sampled_from([13, 9]))
    def come_back_after_a_loss(self, data: st.DataObject, kind: int, prompt_len: int) -> None:
        """What a second request uses is stored, and fetched by a worker that has nothing."""
        for _ in range(2):
            self.add([kind] * prompt_len, max_tokens=2)
            self.step(data, 6)
        self.lose(self.loops[0])
        self.add([kind] * prompt_len, max_tokens=2)
        self.step(data, 3)

    @rule(data=st.data(), kind=st.integers(1, 4))
    def lose_stored_blocks(self, data: st.DataObject, kind: int) -> None:
        """A store may evict any block at any time."""
        for block_hash in sorted(self.kept)[::kind]:
            del self.kept[block_hash]

    @rule(data=st.data())
    def reset_prefix_cache(self, data: st.DataObject) -> None:
        loop = data.draw(st.sampled_from(self.loops))
        loop.scheduler.reset_prefix_cache()

    @rule(data=st.data())
    def clear_prefix_cache(self, data: st.DataObject) -> None:
        """Unlike a reset, also while requests run."""
        loop = data.draw(st.sampled_from(self.loops))
        loop.scheduler.clear_prefix_cache(None, lambda _: None)

    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        """Time passes in which the worker says nothing."""
        data.draw(st.sampled_from(self.loops)).now += 5.0

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

    @precondition(lambda self: state_group(self.groups_of_layers))
    @rule(data=st.data())
    def fail_step(self, data: st.DataObject) -> None:
        """The next step that computes takes its states with it."""
        data.draw(st.sampled_from(self.loops)).worker.fails_next = True

    @rule(data=st.data())
    def lose_worker(self, data: st.DataObject) -> None:
        self.lose(data.draw(st.sampled_from(self.loops)))

    def lose(self, lost: Loop) -> None:
        index = self.loops.index(lost)
        self.ended += lost.ended
        self.audits.leave(lost.scheduler.state)
        record_loss(self.records, lost.scheduler)
        for group in lost.scheduler.evacuate():
            if group.suspicion is not None and group.suspicion.is_proven:
                self.aborted.add(group)
            else:
                self.admission.add(group)
        self.loops[index] = self.make_loop(index)

    @invariant()
    def blocks_are_conserved_and_groups_are_in_one_queue(self) -> None:
        queued = list(self.admission)
        for loop in self.loops:
            scheduler = loop.scheduler
            scheduler.check()
            queued += [*scheduler.running, *scheduler.swapped, *scheduler.loading]
        assert len(queued) == len(set(queued))
        assert set(queued) == set(self.live)

    @invariant()
    def tenants_salts_and_adapters_share_no_block(self) -> None:
        for loop in self.loops:
            for groups in (loop.scheduler.running, loop.scheduler.swapped):
                owner_of: dict[int, tuple[str, str, str]] = {}
                for group in groups:
                    request = group.request
                    owner = (request.tenant, request.cache_salt, request.adapter)
                    for seq in group.sequences:
                        for block in held(seq.block_table):
                            assert owner_of.setdefault(block, owner) == owner

    @invariant()
    def blocks_hold_what_their_hashes_say(self) -> None:
        for loop in self.loops:
            loop.check_content(self.content, knows_all=not self.has_beams)
        for block_hash, block in self.kept.items():
            if not self.has_beams or block_hash in self.content:
                assert block == self.content[block_hash], "the store has a wrong block"

    @invariant()
    def frames_add_up_to_what_is_the_case(self) -> None:
        for watcher in self.watchers.values():
            watcher.check()

    def teardown(self) -> None:
        for _ in range(4):  # what one loop sets back another may take
            for loop in self.loops:
                loop.run()
        assert not self.live
        for group in self.groups:
            self.audits.ended(group, self.now)
        for loop in self.loops:
            loop.run()  # its audits
        self.assert_audits()
        ended = self.ended + [group for loop in self.loops for group in loop.ended]
        assert sorted(map(id, ended)) == sorted(id(g) for g in self.groups if g not in self.aborted)
        for loop in self.loops:
            scheduler = loop.scheduler
            scheduler.check()
            assert not is_moving(scheduler)
            assert scheduler.blocks.gpu.num_free == scheduler.blocks.gpu.num_blocks
            assert scheduler.blocks.cpu.num_free == scheduler.blocks.cpu.num_blocks
        for group in ended:
            self.assert_output(group)

    def assert_audits(self) -> None:
        log = self.audits.log
        num_over = log.num_equal + sum(log.num_dropped.values())
        assert num_over <= log.num_chosen
        assert not log.num_different

    def assert_output(self, group: SequenceGroup) -> None:
        assert group.failure is None
        assert [seq.branch for seq in group.sequences] == list(range(group.request.num_sequences))
        if group.request.beam_search is not None:
            assert_found(group)
            return
        for seq in group.sequences:
            tokens = seq.output_token_ids
            assert seq.status is SequenceStatus.FINISHED
            assert tokens == expected(
                group.request.prompt_token_ids, num_tokens=len(tokens), branch=seq.branch
            )
            if seq.finish_reason is FinishReason.LENGTH:
                assert len(tokens) == group.max_tokens
            if seq.finish_reason is FinishReason.STOP_STRING:
                assert len(tokens) == self.stopped[group, seq.branch]


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "300")), stateful_step_count=40
)
