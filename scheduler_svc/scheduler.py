"""Plans the steps of one worker: who computes how many tokens, in which blocks.

Pure planning: no clock, no I/O. `schedule` books what it plans; `update` takes the answer. Two
steps may be planned before the first is answered, so a sequence counts its tokens in flight, and
while there are any it is not preempted, forked or freed.

The parts, each of which owns what the others ask it for: `GroupQueues` (which group is where),
`BlockSpaceManager` (who holds which blocks), `WorkerView` (what the worker knows), `Planner`,
`Pulling` and `Preemption` (who computes, who comes in, who yields), `Acceptance` and `Endings`
(what answers mean, what ends), `SteadyLane` (the counters of those who only decode).
"""

from collections import deque
from collections.abc import Set

from scheduler_svc.acceptance import Acceptance
from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.block_manager import BlockSpaceManager
from scheduler_svc.config import CacheShape, PreemptionMode, StepLimits
from scheduler_svc.cost import CostModel
from scheduler_svc.endings import Endings
from scheduler_svc.plan import StepAnswer, StepOutcome, StepPlan
from scheduler_svc.planner import Planner
from scheduler_svc.preemption import Preemption
from scheduler_svc.pulling import Pulling
from scheduler_svc.queues import GroupQueues
from scheduler_svc.sequence import (
    Counters,
    FinishReason,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from scheduler_svc.stats import RequestStats, StepStats
from scheduler_svc.steady import SteadyLane
from scheduler_svc.worker_view import WorkerView


class Scheduler:
    """One worker's queues and blocks."""

    def __init__(
        self,
        *,
        limits: StepLimits,
        cache: CacheShape,
        admission: AdmissionQueue,
        preemption_mode: PreemptionMode = PreemptionMode.AUTO,
        cost: CostModel | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        worker_name: str = "",
    ) -> None:
        self.worker_name = worker_name
        self.limits = limits
        self._memory_tokens: int | None = None
        self.cost = cost or CostModel()
        self.inflight: deque[StepPlan] = deque()
        self.num_steps = 0
        self.steps = StepStats()
        self.request_stats = RequestStats()  # of those that ended here
        self.blocks = blocks = BlockSpaceManager(
            block_size=cache.block_size,
            num_gpu_blocks=cache.num_gpu_blocks,
            num_cpu_blocks=cache.num_cpu_blocks,
            num_watermark_blocks=cache.num_watermark_blocks,
            max_model_len=cache.max_model_len,
            prefix_caching=cache.prefix_caching,
            cpu_prefix_cache=cache.cpu_prefix_cache,
            costs=self.cost,
        )
        self._queues = queues = GroupQueues(admission)
        self._lane = lane = SteadyLane(blocks, admission)
        self._view = view = WorkerView(blocks)
        self._endings = Endings(queues=queues, blocks=blocks, view=view)
        self._preemption = Preemption(
            queues=queues,
            blocks=blocks,
            lane=lane,
            view=view,
            endings=self._endings,
            cost=self.cost,
            mode=preemption_mode,
        )
        self._pulling = Pulling(limits=limits, queues=queues, blocks=blocks, endings=self._endings)
        self._planner = Planner(
            limits=limits,
            queues=queues,
            pulling=self._pulling,
            blocks=blocks,
            lane=lane,
            view=view,
            preemption=self._preemption,
            endings=self._endings,
            worker_name=worker_name,
        )
        self._acceptance = Acceptance(
            blocks=blocks,
            lane=lane,
            view=view,
            endings=self._endings,
            admission=admission,
            eos_token_ids=eos_token_ids,
        )

    # Steps

    @property
    def token_budget(self) -> int:
        """Tokens of the next step."""
        return self.limits.token_budget(self._memory_tokens)

    def schedule(self, now: float) -> StepPlan | None:
        """Plans one step and books its blocks; None if there is nothing to do."""
        plan = StepPlan(
            step_id=self.num_steps + 1,
            token_budget=self.token_budget,
            planned_at=now,
        )
        self._planner.fill(plan, now)
        plan.swap_out += self.blocks.complete()
        if plan.is_empty:
            return None
        self._view.close(plan)
        self._planner.settle(plan)
        self.num_steps = plan.step_id
        self.inflight.append(plan)
        return plan

    def take_failed(self) -> list[SequenceGroup]:
        """Returns the groups that planning had to end, each once."""
        return self._endings.take_failed()

    def update(self, answer: StepAnswer, now: float) -> StepOutcome:
        """Takes the answer to the oldest planned step."""
        plan = self.inflight.popleft()
        assert plan.step_id == answer.step_id, "steps are answered in order"
        self._memory_tokens = answer.max_num_batched_tokens
        self.cost.observe(plan, answer.timings)
        self.steps.observe(plan, answer.timings, now)
        return self._acceptance.accept(plan, answer, now)

    # Ending

    def stop_sequence(self, group: SequenceGroup, *, index: int, keep_tokens: int) -> bool:
        """Ends a branch at a stop string; returns whether that ended the group.

        A branch that is unknown or has ended already is left as it is, as is a beam search.
        """
        self._lane.release(group)
        for seq in () if group.awaits_answers else group.unfinished:
            if seq.branch == index:
                del seq.output_token_ids[keep_tokens:]
                self._endings.end(seq, FinishReason.STOP_STRING)
        return group.is_finished

    def abort(self, group: SequenceGroup) -> None:
        """Ends a group that runs or is swapped. Blocks come back once no step holds them."""
        self._lane.release(group)
        self._endings.end_all(group)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; False, changing nothing, unless all work has ended."""
        return not self.has_unfinished and self.blocks.reset_prefix_cache()

    def drain(self) -> None:
        """Takes nothing new from now on; who has started is still taken back."""
        self._queues.drain()

    def evacuate(self) -> list[SequenceGroup]:
        """Takes everything out that had not ended: the worker is gone, and its KV with it.

        The scheduler is not used afterwards; the groups can be recomputed elsewhere.
        """
        self._lane.release_all()
        groups = self._queues.take_all()
        for group in groups:
            for seq in group.sequences:
                self.blocks.free(seq)
                seq.forget_progress()
            group.set_status(SequenceStatus.WAITING)
        return groups

    # Looking inside

    @property
    def admission(self) -> AdmissionQueue:
        """The queue that all workers share."""
        return self._queues.admission

    @property
    def running(self) -> list[SequenceGroup]:
        """In order of priority; to be read only, as `swapped` is."""
        return self._queues.running

    @property
    def swapped(self) -> list[SequenceGroup]:
        return self._queues.swapped

    @property
    def is_accepting(self) -> bool:
        """Whether groups that no worker has worked on may come in."""
        return self._queues.is_accepting

    @property
    def has_unfinished(self) -> bool:
        """Whether a group is running, swapped or to be recomputed, or a step is in flight."""
        return bool(self.running or self.swapped or self.inflight or self.admission.started)

    @property
    def num_preemptions(self) -> int:
        return self._preemption.num_preemptions

    @property
    def num_recomputes(self) -> int:
        """Preemptions whose KV is recomputed; the others were swapped."""
        return self._preemption.num_recomputes

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts that have had their first token."""
        return self._acceptance.num_prompt_tokens

    @property
    def num_generated_tokens(self) -> int:
        return self._acceptance.num_generated_tokens

    @property
    def num_prefix_queries(self) -> int:
        """Tokens that were looked for in the prefix cache; `num_prefix_hits` were found."""
        return self._planner.num_prefix_queries

    @property
    def num_prefix_hits(self) -> int:
        return self._planner.num_prefix_hits

    @property
    def num_cpu_prefix_hits(self) -> int:
        """Of the tokens found, those that were found in the CPU pool and copied back."""
        return self._planner.num_cpu_prefix_hits

    @property
    def draining(self) -> Set[Sequence]:
        """Sequences that have ended and still hold blocks, for a step in flight holds them."""
        return self._endings.draining

    @property
    def steady(self) -> list[Sequence]:
        """The sequences of the steady lane, in order of its rows."""
        return self._lane.seqs

    @property
    def forget_seq_ids(self) -> list[int]:
        """What the worker is told to forget with the next step."""
        return self._view.forget_seq_ids

    def counters(self, seq: Sequence) -> Counters:
        """Returns how far a sequence is, wherever its counters are kept."""
        return self._lane.counters(seq)

    def holds(self, group: SequenceGroup) -> bool:
        """Says whether the group runs or is swapped here."""
        return group in self._queues

    def can_ever_take(self, group: SequenceGroup) -> bool:
        """Says whether a waiting group could come in here, if not now then when others are gone."""
        return (self.is_accepting or group.has_started) and self._pulling.can_ever_run(group)

    def most_new_tokens(self, group: SequenceGroup) -> int:
        """Returns the greatest max_tokens of a new group that is taken here; else below 1."""
        return self._pulling.most_new_tokens(group) if self.is_accepting else 0

    @property
    def effective_max_model_len(self) -> int:
        """Tokens of the longest sequence of a new group that is taken here; 0 if none is."""
        return self.blocks.longest_alone if self.is_accepting else 0

    def check(self) -> None:
        """Asserts that blocks are conserved and each group is in one queue, in its status."""
        self._queues.check()
        self._lane.check()
        queued = {seq for group in self.running + self.swapped for seq in group.sequences}
        self.blocks.check(queued | self._endings.draining)
        self._view.check(queued)
