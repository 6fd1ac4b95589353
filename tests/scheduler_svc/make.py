"""Builders for tests of the scheduler, and a loop that runs it against the fake worker."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.errors import Code
from signalbox_contract.model import ModelInfo, Numerics, StoreCapacity
from signalbox_contract.pooling import PoolingModel, PoolingParams, Vector
from signalbox_contract.request import BeamSearchParams, Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.structured_output.grammar_cost import UNMEASURED, GrammarCost
from signalbox_contract.updates import RequestFailure, RequestUpdates
from signalbox_scheduler.config import (
    AdmissionBounds,
    CacheShape,
    PeerIdentity,
    PreemptionMode,
    StepLimits,
    WorkerConfig,
)
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv.prefix_cache import (
    name_in_group,
    names_of_parts,
    next_hash,
    root_hash,
)
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.policies import FCFS, SchedulingPolicy
from signalbox_scheduler.requests.sequence_group import (
    RouterSession,
    Sequence,
    SequenceGroup,
    new_group,
)
from signalbox_scheduler.results.step_outcome import StepOutcome
from signalbox_scheduler.transfers.peer_registry import PeerRegistry
from signalbox_scheduler.transfers.transfer_connector import TransferConnector
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from tests.scheduler_svc.fake_store import FakeStore
from tests.scheduler_svc.fake_worker import (
    STATE,
    VOCAB_SIZE,
    Block,
    EncodedPlan,
    FakeWorker,
    expected,
    last_block,
)

EOS = 0
NOT_FINITE = RequestFailure(Code.INTERNAL, "logits are not finite")

MODEL = ModelInfo(
    name="model",
    architecture="",
    dtype="float32",
    vocab_size=VOCAB_SIZE,
    max_model_len=128,
    eos_token_ids=(EOS,),
    tokenizer_sha256="",
)


def make_scheduler(
    *,
    block_size: int = 4,
    num_gpu_blocks: int = 64,
    num_cpu_blocks: int = 0,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 256,
    prefill_spread_steps: int = 1,
    max_in_flight: int = 2,
    num_stages: int = 1,
    max_adapters: int | None = None,
    cuts_prompts: bool = True,
    max_draft_tokens: int = 0,
    max_model_len: int = 128,
    watermark: float = 0.0,
    admission: AdmissionQueue | None = None,
    mode: PreemptionMode = PreemptionMode.SWAP,
    prefix_caching: bool = True,
    cpu_prefix_cache: bool = True,
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,),
    cost: CostModel | None = None,
    grammar_bytes: int = 1 << 30,
    numerics: Numerics | None = None,
    arithmetic: str = "",
    worker_name: str = "",
    store: StoreCapacity | None = None,
    identity: PeerIdentity | None = None,
    peers: PeerRegistry | None = None,
) -> Scheduler:
    """Returns a scheduler that has joined `peers`, or that is alone, maybe with a store."""
    config = WorkerConfig(
        limits=StepLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            prefill_spread_steps=prefill_spread_steps,
            max_in_flight=max_in_flight,
            num_stages=num_stages,
            max_adapters=max_adapters,
            cuts_prompts=cuts_prompts,
            max_draft_tokens=max_draft_tokens,
        ),
        cache=CacheShape(
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=num_cpu_blocks,
            watermark=watermark,
            max_model_len=max_model_len,
            prefix_caching=prefix_caching,
            cpu_prefix_cache=cpu_prefix_cache,
            groups=groups,
        ),
        preemption_mode=mode,
        eos_token_ids=frozenset({EOS}),
        grammar_bytes=grammar_bytes,
        numerics=numerics,
        arithmetic=arithmetic,
        identity=identity or PeerIdentity(address=worker_name),
        store=store,
    )
    if admission is None:
        admission = AdmissionQueue()
    scheduler = Scheduler(config, admission=admission, cost=cost or CostModel())
    if peers is not None or store is not None:
        (peers or PeerRegistry()).join(scheduler.state, lambda: None)
    return scheduler


def transfers(scheduler: Scheduler) -> TransferConnector:
    """Returns the connector of a worker that has a store or peers."""
    assert isinstance(scheduler.state.connector, TransferConnector)
    return scheduler.state.connector


def is_moving(scheduler: Scheduler) -> bool:
    """Says whether something moves between the worker and a store or a peer."""
    return scheduler.state.connector.next_poll_at < math.inf


class NoRouter:
    def send(self, updates: RequestUpdates) -> None: ...


def make_arrival(
    prompt: list[int],
    *,
    reply_to: RouterSession | None = None,
    arrival: float = 0.0,
    deadline: float | None = None,
    **fields: Any,
) -> SequenceGroup:
    """Returns the group of a request that has just arrived, without sequences."""
    timeout_ns = None if deadline is None else int((deadline - arrival) * 1e9)
    defaults = {"request_id": f"r{arrival}", "max_tokens": 8, "params": SamplingParams()}
    request = Request(prompt_token_ids=prompt, timeout_ns=timeout_ns, **defaults | fields)
    return new_group(request, reply_to=reply_to or NoRouter(), now=arrival)


def make_request(
    prompt: list[int],
    *,
    max_tokens: int = 8,
    n: int = 1,
    arrival: float = 0.0,
    stop_token_ids: tuple[int, ...] = (),
    min_tokens: int = 0,
    request_id: str = "",
    tenant: str = "",
    payer: str = "",
    priority: int = 0,
    cache_salt: str = "",
    adapter: str = "",
    beam_search: BeamSearchParams | None = None,
    num_prompt_logprobs: int | None = None,
    structured_output: tuple[str, ...] | None = None,
    grammar_cost: GrammarCost = UNMEASURED,
    pooling: PoolingParams | None = None,
    snapshot_positions: tuple[int, ...] = (),
    prewarm: bool = False,
    no_speculation: bool = False,
    prediction: tuple[int, ...] = (),
) -> SequenceGroup:
    group = make_arrival(
        prompt,
        arrival=arrival,
        request_id=request_id or f"r{arrival}",
        params=SamplingParams(
            stop_token_ids=stop_token_ids,
            min_tokens=min_tokens,
            num_prompt_logprobs=num_prompt_logprobs,
            structured_output=structured_output,
            grammar_cost=grammar_cost,
        ),
        max_tokens=max_tokens,
        num_sequences=n,
        tenant=tenant,
        payer=payer,
        priority=priority,
        beam_search=beam_search,
        cache_salt=cache_salt,
        adapter=adapter,
        pooling=pooling,
        snapshot_positions=snapshot_positions,
        prewarm=prewarm,
        no_speculation=no_speculation,
        prediction=prediction,
    )
    group.begin()
    return group


@dataclass(slots=True)
class Loop:
    """Runs one scheduler on one fake worker with up to `depth` steps in flight."""

    scheduler: Scheduler
    worker: FakeWorker
    depth: int = 2
    now: float = 0.0
    sent: deque[EncodedPlan] = field(default_factory=deque)
    ended: list[SequenceGroup] = field(default_factory=list)
    pooled: dict[SequenceGroup, Vector] = field(default_factory=dict)
    preparing: Preparation | None = None
    step_s: float = 1.0
    """Seconds between two plannings."""
    queues_again: bool = False
    """True if no cluster returns requests to the queue whose states were lost in a step."""

    def send(self) -> bool:
        """Plans and sends one step, if there is room for it and something to do."""
        self.now += self.step_s
        if len(self.sent) >= self.depth:
            return False
        plan = self.scheduler.schedule(self.now)
        self.ended += self.scheduler.pop_failed()
        if (preparation := self.scheduler.grammars.pop_preparation()) is not None:
            assert self.preparing is None, "a worker compiles one at a time"
            self.preparing = preparation
        if plan is None:
            # The engine sleeps then, and stays asleep if no answer comes.
            assert self.sent or self.scheduler.schedule(self.now) is None, "work was overlooked"
            return False
        limits = self.scheduler.limits
        assert len(plan.seqs) <= limits.max_num_seqs
        if limits.cuts_prompts or len(plan.seqs) > 1:
            num_rows = plan.total_tokens + sum(plan.num_drafts.values())
            assert num_rows <= limits.max_num_batched_tokens
        adapters = {seq.group.request.adapter for seq in plan.seqs} - {""}
        assert len(adapters) <= (limits.max_adapters or len(adapters))
        self._check_suspects(plan)
        self.sent.append(EncodedPlan(plan))
        return True

    def _check_suspects(self, plan: StepPlan) -> None:
        """Asserts that a suspect computes alone, and that nothing else is in flight meanwhile."""
        groups = {seq.group for seq in plan.seqs}
        has_suspect = any(group.suspicion is not None for group in groups)
        assert plan.is_alone == has_suspect
        if any(one.is_alone for one in self.scheduler.in_flight):
            assert len(groups) == len(self.scheduler.in_flight) == 1

    def answer(self) -> StepOutcome | None:
        """Lets the worker execute and answer the oldest step."""
        if not self.sent:
            return None
        outcome = self.scheduler.update(self.worker.execute(self.sent.popleft()), self.now)
        self.ended += outcome.ended
        for group in outcome.set_back if self.queues_again else ():
            self.scheduler.admission.add(group)
        for group, vector in outcome.pooled:
            assert group not in self.pooled, "a request has two vectors"
            self.pooled[group] = vector
        return outcome

    def compile(self, *, fault: str = "") -> bool:
        """Ends what is being compiled, if anything is."""
        prepared, self.preparing = self.preparing, None
        if prepared is not None:
            self.scheduler.grammars.prepared(prepared.constraint, fault=fault)
            self.ended += self.scheduler.pop_failed()
        return prepared is not None

    def turn(self, times: int = 1) -> None:
        """Sends a step and answers the oldest one, so many times."""
        for _ in range(times):
            self.send()
            self.answer()

    def run(self, *, max_steps: int = 5000) -> None:
        """Runs until nothing is left to do."""
        for _ in range(max_steps):
            while self.send():
                self.scheduler.check()
            if self.answer() is None and not self.compile() and not self._waits_for_moves():
                return
            self.scheduler.check()
        raise AssertionError(f"still busy after {max_steps} steps")

    def _waits_for_moves(self) -> bool:
        """Waits until a step is due that asks for the ends of moves, if any are under way."""
        if not is_moving(self.scheduler):
            return False
        self.now = max(self.now, self.scheduler.state.connector.next_poll_at)
        return True

    def check_content(self, content: dict[bytes, Block], *, knows_all: bool = True) -> None:
        """Asserts that blocks hold what their hashes say; the worker knows once it has answered."""
        if self.sent:
            return
        blocks = self.scheduler.blocks
        for pool, kv in ((blocks.gpu, self.worker.gpu), (blocks.cpu, self.worker.cpu)):
            for block, block_hash in pool.hashes.items():
                if knows_all or block_hash in content:
                    assert kv[block] == content[block_hash], f"block {block} is not what it says"


def retract(loop: Loop, seq: Sequence) -> None:
    """Lets a sequence turn out wrong, as a step's result says it."""
    loop.scheduler.blocks.retract(seq)
    loop.scheduler.state.connector.step_answered(loop.now)


def content_of(
    group: SequenceGroup, *, block_size: int, groups: tuple[CacheGroup, ...] = (FULL_GROUP,)
) -> dict[bytes, Block]:
    """What each block that the group may compute holds, by its hash; of states the first."""
    content = {}
    for branch in range(group.request.num_sequences):
        prompt = group.request.prompt_token_ids
        tokens = prompt + expected(prompt, num_tokens=group.max_tokens, branch=branch)
        request = group.request
        block_hash = root_hash(
            tenant=request.tenant, cache_salt=request.cache_salt, adapter=request.adapter
        )
        for end in range(block_size, len(tokens) + 1, block_size):
            block_hash = next_hash(block_hash, tokens[end - block_size : end])
            block = last_block(tokens[:end], block_size=block_size)
            for column, one in enumerate(groups):
                value = block[block_size - 1][1]
                name = name_in_group(block_hash, column)
                content[name] = block
                for part, part_name in enumerate(names_of_parts(name, one.state_blocks)):
                    content[part_name] = {STATE: (part, value)} if one.state_blocks else block
    return content


def make_loop(
    scheduler: Scheduler,
    *,
    depth: int = 2,
    loses_copies: bool = False,
    pooling: PoolingModel | None = None,
    kept: dict[bytes, Block] | None = None,
    step_s: float = 1.0,
    draft_kinds: str = "",
) -> Loop:
    """`kept` is what the worker's store has; None is no store."""
    size, groups = scheduler.blocks.block_size, scheduler.blocks.groups
    worker = FakeWorker(size, groups, pooling=pooling, loses_copies=loses_copies)
    worker.draft_kinds = draft_kinds
    if kept is not None:
        worker.store = FakeStore(kept, worker.cpu)
    return Loop(scheduler, worker, depth, step_s=step_s)


def outputs(group: SequenceGroup) -> list[list[int]]:
    return [seq.output_token_ids for seq in sorted(group.sequences, key=lambda seq: seq.branch)]


def make_cluster(
    *,
    policy: SchedulingPolicy = FCFS,
    bounds: AdmissionBounds | None = None,
    worker_wait_s: float = 0.0,
    audit_cpu: float = 0.0,
    clock: Callable[[], float] = lambda: 0.0,
) -> Cluster:
    cluster = Cluster(
        policy=policy,
        bounds=bounds,
        worker_wait_s=worker_wait_s,
        audit_cpu=audit_cpu,
        clock=clock,
    )
    cluster.serve(MODEL)
    return cluster


def join_worker(cluster: Cluster, *, name: str = "", **options: Any) -> tuple[StepLoop, Loop]:
    options = {"num_gpu_blocks": 64} | options
    scheduler = make_scheduler(admission=cluster.admission, worker_name=name, **options)
    steps = StepLoop(scheduler, send_updates=cluster.requests.send_updates, prepare=lambda _: None)
    cluster.join(steps)
    return steps, make_loop(scheduler)


def assert_all_free(loop: Loop) -> None:
    scheduler = loop.scheduler
    scheduler.check()
    assert scheduler.blocks.gpu.num_free == scheduler.blocks.gpu.num_blocks
    assert scheduler.blocks.cpu.num_free == scheduler.blocks.cpu.num_blocks
    assert not scheduler.has_unfinished
    assert not scheduler.admission
