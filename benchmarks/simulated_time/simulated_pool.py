"""A pool of workers under the real scheduler, and clients that read tokens, in simulated time."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness.answers import Answer, Asked
from benchmarks.simulated_time.event_clock import EventClock
from benchmarks.simulated_time.peer_links import PeerLinks
from benchmarks.simulated_time.simulated_worker import SimulatedWorker
from benchmarks.simulated_time.step_costs import StepCosts
from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_contract.request import Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.updates import RequestUpdates
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.requests.sequence_group import new_group
from signalbox_scheduler.workers.factory import make_cluster

BLOCK_SIZE = 16
VOCAB_SIZE = 32_000


class Clients:
    """Satisfies `RouterSession`: notes when each token comes."""

    def __init__(self, clock: EventClock) -> None:
        self._clock = clock
        self.answers: list[Answer] = []
        self.when_ended: dict[int, Callable[[], None]] = {}
        """Called at the end of a request, by its handle."""

    def send(self, updates: RequestUpdates) -> None:
        for handle, _, token_ids, _ in updates.runs():
            self.answers[handle - 1].token_times += [self._clock.now] * len(token_ids)
        for end in updates.finished_requests:
            self.answers[end.handle - 1].num_cached = end.usage.cached_tokens
            if end.failure is not None:
                self.answers[end.handle - 1].failure = end.failure.message
            if (call := self.when_ended.pop(end.handle, None)) is not None:
                call()


class SimulatedPool:
    """Workers that share a scheduler.

    Args:
        max_num_seqs: sequences in a step of a worker.
        num_gpu_blocks: KV blocks of a worker.
        settings: of the scheduler.
    """

    def __init__(
        self,
        costs: StepCosts,
        *,
        num_workers: int,
        max_num_seqs: int,
        num_gpu_blocks: int,
        max_num_batched_tokens: int = 2048,
        num_cpu_blocks: int = 1024,
        groups: tuple[CacheGroup, ...] = (FULL_GROUP,),
        max_model_len: int = 16_384,
        settings: SchedulerConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.clock = EventClock()
        self.clients = Clients(self.clock)
        self.workers: list[SimulatedWorker] = []
        self._rng = random.Random(seed)
        self._costs = costs
        self._links = PeerLinks(self.clock, costs)
        self._config = settings or SchedulerConfig(max_queued_requests=1 << 20)
        self._model = ModelInfo(
            name="simulated",
            architecture="",
            dtype="bfloat16",
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            eos_token_ids=(),
        )
        self._capacity = WorkerCapacity(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=num_cpu_blocks,
            block_bytes=costs.block_bytes,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            copy_bytes_per_s=costs.copy_bytes_per_s,
            prefill_tokens_per_s=1024 / costs.prefill_s(1024),
            grammar_bytes=1 << 20,
            max_steps_in_flight=2,
            block_format="simulated",
            groups=groups,
        )
        self.cluster = make_cluster(self._config, clock=self.clock)
        self.cluster.serve(self._model)
        for _ in range(num_workers):
            self.join()

    def join(self, role: WorkerRole = WorkerRole.BOTH) -> SimulatedWorker:
        """Adds a worker now."""
        worker = SimulatedWorker(
            f"worker {len(self.workers)}",
            clock=self.clock,
            cluster=self.cluster,
            config=self._config,
            model=self._model,
            capacity=self._capacity,
            costs=self._costs,
            links=self._links,
            role=role,
        )
        self.workers.append(worker)
        self.cluster.join(worker.loop)
        return worker

    def ask_at(self, when: float, asked: Asked) -> None:
        """Has a client send a request at a time."""
        self.clock.call_at(when, partial(self.ask, asked))

    def ask(
        self, asked: Asked, *, when_ended: Callable[[], None] | None = None, **fields: Any
    ) -> int:
        """Has a client send a request of random tokens now, or one with these fields.

        Returns its handle, which is the number of its answer.

        Args:
            when_ended: called with its last tokens.
        """
        self.clients.answers.append(Answer(asked, self.clock.now))
        handle = len(self.clients.answers)
        if not fields:
            tokens = self._rng.choices(range(VOCAB_SIZE), k=asked.prompt_tokens)
            fields = {"prompt_token_ids": tokens}
        request = Request(
            handle=handle,
            request_id=f"r{handle}",
            params=SamplingParams(),
            max_tokens=asked.max_tokens,
            **fields,
        )
        group = new_group(request, reply_to=self.clients, now=self.clock.now)
        if when_ended is not None:
            self.clients.when_ended[handle] = when_ended
        self.cluster.requests.add(group)
        return handle

    def drain(self, worker: SimulatedWorker, *, within_s: float) -> None:
        """Has a worker leave once it has ended what it had, or `within_s` from now."""
        self.cluster.drain(worker.loop)
        self._leave_when_drained(worker, self.clock.now + within_s)

    def _leave_when_drained(self, worker: SimulatedWorker, latest: float) -> None:
        if self.clock.now < latest and not worker.loop.is_drained:
            later = min(latest, self.clock.now + 0.01)
            self.clock.call_at(later, partial(self._leave_when_drained, worker, latest))
            return
        worker.leave()
        self.cluster.leave(worker.loop)

    def check(self) -> None:
        """Asserts that every answer is whole, and that no worker has work or blocks left."""
        broken = [answer for answer in self.clients.answers if not answer.is_whole]
        assert not broken, f"{len(broken)} answers are not whole: {broken[0].failure}"
        self.cluster.check()
        for loop in self.cluster.step_loops:
            assert not loop.scheduler.has_unfinished
