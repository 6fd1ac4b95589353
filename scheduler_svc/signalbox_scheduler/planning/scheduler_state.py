"""The parts that own one worker's state in the scheduler, and what completes a filled plan."""

from dataclasses import dataclass, field
from typing import Self

from signalbox_scheduler.config import WorkerConfig
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.planning.connector import KVConnector
from signalbox_scheduler.planning.decode_batch import DecodeBatch
from signalbox_scheduler.planning.draft_planner import DraftPlanner
from signalbox_scheduler.planning.group_selection import GroupSelection
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.sequence_release import SequenceRelease
from signalbox_scheduler.planning.step_audits import StepAudits
from signalbox_scheduler.planning.steps_in_flight import StepsInFlight
from signalbox_scheduler.planning.suspect_turns import SuspectSchedule
from signalbox_scheduler.planning.worker_grammars import WorkerGrammars
from signalbox_scheduler.planning.worker_state import WorkerState
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.stage_use import StageAccount


@dataclass(slots=True, eq=False, kw_only=True)
class SchedulerState:
    """The owners of one worker's state, for the parts that decide a step or process its result."""

    config: WorkerConfig
    cost: CostModel
    in_flight: StepsInFlight
    queues: GroupQueues
    blocks: BlockSpaceManager
    decode_batch: DecodeBatch
    """Counters of the sequences that only decode."""
    worker_state: WorkerState
    """State of each sequence that the worker has."""
    sequence_release: SequenceRelease
    """Sequences that have ended and still hold blocks."""
    grammars: WorkerGrammars
    drafts: DraftPlanner
    suspects: SuspectSchedule
    selection: GroupSelection
    stages: StageAccount
    """Time of the worker's stages, if it has several ranks."""
    connector: KVConnector = field(default_factory=KVConnector)
    """Moves KV of the worker, if there is somewhere to move it; changed between steps alone."""
    audits: StepAudits = field(default_factory=StepAudits)
    """Audits earlier answers while the worker idles."""

    @classmethod
    def make(cls, config: WorkerConfig, *, admission: AdmissionQueue, cost: CostModel) -> Self:
        """Returns the state of a worker that has just joined.

        Args:
            admission: the queue that all workers share.
            cost: decides which copies for the prefix cache are worth it.
        """
        blocks = BlockSpaceManager(config.cache, costs=cost)
        queues, worker_state = GroupQueues(admission), WorkerState(blocks)
        decode_batch = DecodeBatch(blocks, admission)
        drafts = DraftPlanner(config.limits, queues, blocks, decode_batch, worker_state)
        release = SequenceRelease(
            queues=queues, blocks=blocks, worker_state=worker_state, drafts=drafts
        )
        in_flight = StepsInFlight(cost)
        grammars = WorkerGrammars(queues, release, memory_bytes=config.grammar_bytes)
        suspects = SuspectSchedule(queues, in_flight, worker_name=config.identity.address)
        return cls(
            config=config,
            cost=cost,
            in_flight=in_flight,
            queues=queues,
            blocks=blocks,
            decode_batch=decode_batch,
            worker_state=worker_state,
            sequence_release=release,
            grammars=grammars,
            drafts=drafts,
            suspects=suspects,
            selection=GroupSelection(
                queues,
                blocks,
                release,
                limits=config.limits,
                grammars=grammars,
                suspects=suspects,
            ),
            stages=StageAccount(config.ranks),
        )

    def finish_copies(self, plan: StepPlan) -> None:
        """Gives a filled plan the copies that its sequences, and those it swaps, call for."""
        plan.block_moves = self.blocks.copies.finish_plan()

    def attach(self, plan: StepPlan) -> None:
        """Completes a plan that is to be sent: states, new branches, and sequences to
        forget."""
        if self.blocks.states.new:
            plan.states = self.blocks.states.take_new()
        if self.worker_state.forks or self.worker_state.forget_seq_ids:
            self.worker_state.finish_plan(plan)
