"""A cluster of fake workers on a simulated clock, which records all that it is told.

The same calls make the same file, byte for byte. The answers are checked by the fake workers, which
read their tokens back through the block tables.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from signalbox_contract import request as request_codec
from signalbox_contract.columns import int32s, int64s
from signalbox_contract.errors import Code
from signalbox_contract.model import Adapter, ModelInfo, WorkerCapacity
from signalbox_contract.pooling import Vector
from signalbox_contract.request import Request
from signalbox_contract.step import encode_step
from signalbox_contract.step_result import (
    StageTimings,
    StepResult,
    StepTimings,
    decode_result,
    encode_result,
)
from signalbox_contract.updates import FinishedRequest, RequestFailure, RequestUpdates
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_scheduler.audits.finding import AuditLog
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.insight.recorder import RouterRecorder, WorkerRecorder
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.queue.grammar_queue import Constraint
from signalbox_scheduler.service.replay.recording_codec import FileRecorder
from signalbox_scheduler.service.replay.replay_codec import decision
from signalbox_scheduler.service.replay.replayed_cluster import ReplayedCluster, ReplayedRouter
from signalbox_scheduler.service.scheduler_servicer import apply_message
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.request_lifecycle import RequestLifecycle
from tests.scheduler_svc.fake_logits import draw_logits
from tests.scheduler_svc.fake_store import Block, FakeStore
from tests.scheduler_svc.fake_worker import EncodedPlan, FakeWorker

NOT_FINITE = RequestFailure(Code.INTERNAL, "logits are not finite")
START_S = 1000.0


class RecordedRouter(ReplayedRouter):
    """Keeps what its requests are answered."""

    def __init__(self, requests: RequestLifecycle, recorder: RouterRecorder) -> None:
        super().__init__(requests, max_messages=0)
        self.recorded = recorder  # a session's own recorder reads a real clock
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        """By handle and index."""
        self.vectors: dict[int, Vector] = {}
        self.ended: dict[int, FinishedRequest] = {}

    def send(self, updates: RequestUpdates) -> None:
        for handle, index, token_ids, _ in updates.runs():
            self.tokens[handle, index] += token_ids
        self.vectors |= dict(updates.pooled)
        for end in updates.finished_requests:
            assert end.handle not in self.ended, "a request ended twice"
            self.ended[end.handle] = end
        super().send(updates)


@dataclass(slots=True, eq=False)
class RecordedWorker:
    """A fake worker and its lease."""

    number: int
    loop: StepLoop
    recorder: WorkerRecorder
    fake: FakeWorker
    preparations: deque[Preparation]
    """What it was asked to compile and has not answered."""
    sent: deque[EncodedPlan] = field(default_factory=deque)


class RecordedCluster:
    """Workers and routers of one scheduler."""

    def __init__(self, path: Path, config: SchedulerConfig, model: ModelInfo) -> None:
        self.model = model
        self.workers: list[RecordedWorker] = []
        self.kept: dict[bytes, Block] = {}
        """What the workers' stores have, which is one, as a shared one is."""
        self._replayed = ReplayedCluster(config, next_seq_id=1, now=START_S)
        self._recorder = FileRecorder(config, str(path), now=START_S)
        self._tickets: dict[bytes, tuple[FakeStore, int]] = {}
        self._num_workers = 0

    @property
    def now(self) -> float:
        return self._replayed.clock.now

    def wait(self, seconds: float) -> None:
        """Lets time pass; the next record has the time."""
        self._replayed.clock.now += seconds

    @property
    def num_requests(self) -> int:
        """Requests that live."""
        return len(self._replayed.cluster.requests)

    @property
    def audits(self) -> AuditLog:
        return self._replayed.cluster.audits.log

    def router(self) -> RecordedRouter:
        return RecordedRouter(self._replayed.cluster.requests, self._recorder.router())

    def ask(self, router: RecordedRouter, request: Request) -> None:
        self._say(router, pb.ConnectRequest(add_request=request_codec.encode(request)))

    def abort(self, router: RecordedRouter, handle: int) -> None:
        self._say(router, pb.ConnectRequest(abort_request=pb.AbortRequest(handle=handle)))

    def stop(self, router: RecordedRouter, handle: int, index: int, *, keep_tokens: int) -> None:
        stop = pb.StopSequence(handle=handle, index=index, keep_tokens=keep_tokens)
        self._say(router, pb.ConnectRequest(stop_sequence=stop))

    def _say(self, router: RecordedRouter, message: pb.ConnectRequest) -> None:
        router.recorded.said(message, self.now)
        apply_message(message, router, self.now)

    def leave_router(self, router: RecordedRouter) -> None:
        router.recorded.left(self.now)
        router.abort_all()

    def join(
        self,
        capacity: WorkerCapacity,
        *,
        address: str,
        epoch: int,
        role: WorkerRole = WorkerRole.BOTH,
        mask_costs: tuple[int, ...] = (),
    ) -> RecordedWorker:
        self._num_workers += 1
        joined: dict[str, Any] = {"address": address, "epoch": epoch, "model": self.model}
        joined |= {"capacity": capacity, "certified_name": address.split(":")[0], "role": role}
        recorder = self._recorder.worker()
        recorder.describe(**joined)
        recorder.joined(self.now)
        self._replayed.join(self._num_workers, **joined)
        _, loop, preparations = self._replayed.workers[self._num_workers]
        loop.recorder = recorder
        fake = FakeWorker(
            capacity.block_size,
            capacity.groups,
            pooling=self.model.pooling,
            mask_costs=mask_costs,
        )
        fake.store = FakeStore(self.kept, fake.cpu, tickets=self._tickets, patience=20)
        worker = RecordedWorker(self._num_workers, loop, recorder, fake, preparations)
        self.workers.append(worker)
        return worker

    def drain(self, worker: RecordedWorker) -> None:
        self._replayed.drain(worker.number)

    def leave(self, worker: RecordedWorker) -> None:
        """Takes a worker out: it has drained, or it is lost with the steps that it has."""
        self.workers.remove(worker)
        for ticket, (store, _) in list(self._tickets.items()):
            if store is worker.fake.store:
                del self._tickets[ticket]
        worker.recorder.left(self.now)
        self._replayed.leave(worker.number)

    def plan(self, worker: RecordedWorker) -> bool:
        """Plans a step and sends it; False if there is none."""
        plan = worker.loop.fill(self.now)
        if plan is None:
            return False
        epoch = self._replayed.workers[worker.number].epoch
        worker.recorder.sent(decision(encode_step(plan.to_step(epoch=epoch))))
        worker.sent.append(EncodedPlan(plan))
        return True

    def answer(
        self, worker: RecordedWorker, *, fails: bool = False, most_tokens: int | None = None
    ) -> bool:
        """Executes the oldest step and answers it; False if there is none.

        Args:
            fails: one of its sequences fails.
            most_tokens: of the steps from now on, as memory suffices for no more.
        """
        if not worker.sent:
            return False
        sent = worker.sent.popleft()
        result = worker.fake.execute(sent)
        result.epoch = self._replayed.workers[worker.number].epoch
        num_stages = worker.loop.scheduler.limits.num_stages
        result.timings = _timings(sent, result, num_stages=num_stages)
        result.max_num_batched_tokens = most_tokens
        message = encode_result(_with_failure(result) if fails else result)
        worker.recorder.received(message)
        worker.loop.complete(decode_result(message), self.now)
        return True

    def compile(self, worker: RecordedWorker, *, faults: Mapping[Constraint, str]) -> bool:
        """Answers what the worker was asked to compile; False if it was not asked.

        Args:
            faults: of what cannot be compiled.
        """
        if not worker.preparations:
            return False
        constraint = worker.preparations.pop().constraint
        self._replayed.prepared(worker.number, constraint, fault=faults.get(constraint, ""))
        return True

    def change_adapters(self, *adapters: Adapter) -> None:
        """Has other adapters on all workers, and on those that join from now on."""
        self._recorder.adapters_changed(adapters, self.now)
        self._replayed.cluster.change_adapters(adapters)
        assert self._replayed.cluster.model is not None
        self.model = self._replayed.cluster.model

    def clear_cache(self, tenant: str | None) -> None:
        self._recorder.cache_cleared(tenant, self.now)
        self._replayed.cluster.clear_prefix_cache(tenant, lambda *_: None)

    def tick(self) -> None:
        self._recorder.tick(self.now)
        self._replayed.cluster.requests.expire()

    def check(self) -> None:
        self._replayed.cluster.check()

    @property
    def has_blocks(self) -> bool:
        """True if a block of a worker is taken."""
        blocks = [worker.loop.scheduler.blocks for worker in self.workers]
        pools = [pool for one in blocks for pool in (one.gpu, one.cpu)]
        return any(pool.num_free < pool.num_blocks for pool in pools)

    def close(self) -> None:
        """Ends the recording. No request may live, and no block be taken."""
        self._recorder.close()
        assert not self.num_requests
        self.check()
        assert not self.has_blocks


def _timings(sent: EncodedPlan, result: StepResult, *, num_stages: int) -> StepTimings:
    """Returns times that grow with the tokens, drafts and copies of a step."""
    num_drafts = sum(result.drafts.num_drafts.tolist()) if result.drafts is not None else 0
    num_copies = len(sent.block_moves.swap_in.src) + len(sent.block_moves.swap_out.src)
    forward_ns = 10**6 + 10**5 * (sum(sent.num_new_tokens) + num_drafts)
    stage = StageTimings(wait_ns=1000, forward_ns=forward_ns // num_stages, boundary_bytes=64)
    return StepTimings(
        wait_ns=1000,
        swap_ns=20_000 * num_copies,
        forward_ns=forward_ns,
        sample_ns=5000,
        stages=(stage,) * num_stages if num_stages > 1 else (),
    )


def _with_failure(result: StepResult) -> StepResult:
    """Lets the last sequence that has drawn fail, if no other row depends on it."""
    seq_ids = result.seq_ids.tolist()
    if not seq_ids or result.logprobs:
        return result
    failed = seq_ids[-1]
    num_kept = seq_ids.index(failed)  # runs of other sequences come before it
    num_tokens = num_kept
    if result.num_tokens is not None:
        lengths = result.num_tokens.tolist()[:num_kept]
        num_tokens = sum(lengths)
        result.num_tokens = int32s(lengths) if lengths else None
    result.seq_ids = int64s(seq_ids[:num_kept])
    result.token_ids = int32s(result.token_ids.tolist()[:num_tokens])
    if result.draw_logits is not None:
        result.draw_logits = draw_logits(result.draw_logits.tolist()[:num_tokens])
    if result.branches is not None:
        branches = result.branches.tolist()[:num_kept]
        result.branches = int32s(branches) if branches else None
    result.failures = MappingProxyType({failed: NOT_FINITE})
    return result
