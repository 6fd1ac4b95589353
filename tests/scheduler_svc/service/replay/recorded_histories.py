"""Random histories of whole clusters, each of a seed, that are recorded on simulated time.

Each makes likely what it is about; all have chunks of prompts, forks, aborts and lost workers.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.model import Adapter, StoreCapacity, WorkerCapacity
from signalbox_contract.pooling import PoolingModel, PoolingParams
from signalbox_contract.request import BeamSearchParams, DeliveredSequence, Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.structured_output.grammar_cost import GrammarCost
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from tests.scheduler_svc.fake_logits import ARITHMETIC
from tests.scheduler_svc.fake_store import Ending
from tests.scheduler_svc.fake_worker import expected, pooled_vector
from tests.scheduler_svc.make import EOS, MODEL
from tests.scheduler_svc.pooling import BOTH_WAYS, MEAN
from tests.scheduler_svc.service.replay.recorded_cluster import (
    RecordedCluster,
    RecordedWorker,
)

NUM_EVENTS = 700
MOST_TURNS = 20_000
CAPACITY = WorkerCapacity(
    block_size=4,
    num_gpu_blocks=18,
    num_cpu_blocks=12,
    block_bytes=64,
    max_num_seqs=6,
    max_num_batched_tokens=24,
    copy_bytes_per_s=1e5,
    prefill_tokens_per_s=1e3,
    grammar_bytes=50 << 20,
    max_steps_in_flight=2,
    block_format="fake",
)
ADAPTERS = [Adapter(name=name, sha256=name) for name in "xyz"]
SEARCHES = [
    BeamSearchParams(width=2),
    BeamSearchParams(width=3, early_stopping=True),
    BeamSearchParams(width=4, length_penalty=0.0),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a history is about."""

    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the scheduler."""
    capacity: Mapping[str, Any] = field(default_factory=dict)
    """Of the workers, beside CAPACITY."""
    roles: tuple[WorkerRole, ...] = (WorkerRole.BOTH,) * 2
    """Of the workers that there are at any time."""
    pooling: PoolingModel | None = None
    mask_costs: tuple[int, ...] = ()
    """See FakeWorker."""
    draft_kinds: str = ""
    """See FakeWorker."""
    kinds: tuple[str, ...] = ("plain",)
    """Kinds of requests, beside those that all histories have."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of events, beside WEIGHTS."""
    longest: int = 24
    """Tokens that a request generates at most."""


WEIGHTS = {"add": 5.0, "step": 30.0, "abort": 0.7, "stop": 0.7, "lose": 0.4, "wait": 0.5}
WEIGHTS |= {"drain": 0.0, "fail": 0.0, "shrink": 0.0, "clear": 0.0, "leave_router": 0.1}
WEIGHTS |= {"lose_stored_blocks": 0.0, "change_adapters": 0.0}
PREFILL, DECODE, BOTH = WorkerRole.PREFILL, WorkerRole.DECODE, WorkerRole.BOTH
STORE = {"store": StoreCapacity(kind="disk", read_bytes_per_s=1e5)}
SHARED = {"store": StoreCapacity(kind="shared", max_write_bytes_per_s=4000)}
ALONE = {"block_format": ""}
WINDOWS = {"groups": (FULL_GROUP, *(CacheGroup(kind="window", window=size) for size in (9, 6)))}
STATES = (FULL_GROUP, CacheGroup(kind="state", state_blocks=2))
SCENARIOS = {
    "swap": Scenario(
        seed=1,
        settings={"preemption_mode": PreemptionMode.SWAP, "watermark": 0.1},
        capacity=ALONE | {"num_cpu_blocks": 24},
        kinds=("plain", "forks", "beams"),
    ),
    "windows": Scenario(
        seed=16,
        settings={"preemption_mode": PreemptionMode.SWAP},
        capacity=ALONE | WINDOWS | {"num_gpu_blocks": 48, "num_cpu_blocks": 48},
        kinds=("plain", "turns", "forks"),
        longest=40,
    ),
    "recompute": Scenario(
        seed=2,
        settings={"preemption_mode": PreemptionMode.RECOMPUTE, "prefix_caching": False},
        capacity=ALONE | {"num_cpu_blocks": 0},
        kinds=("plain", "forks", "beams"),
    ),
    "states": Scenario(
        seed=20,
        capacity=ALONE | STORE | {"num_gpu_blocks": 30, "groups": STATES},
        kinds=("turns", "named", "forks", "beams"),
        weights={"fail": 0.3, "lose": 1.0, "lose_stored_blocks": 0.5},
    ),
    "prefixes": Scenario(
        seed=3, capacity=ALONE | {"copy_bytes_per_s": 1e6}, kinds=("turns", "turns", "plain")
    ),
    "fair": Scenario(
        seed=4,
        settings={"scheduling_policy": "fair", "max_loras": 1, "max_num_seqs": 4},
        kinds=("plain", "adapters"),
        weights={"change_adapters": 0.3},
    ),
    "priority": Scenario(
        seed=5,
        settings={
            "scheduling_policy": "priority",
            "priority_aging_s": 0.5,
            "max_queued_requests": 8,
            "max_queued_tokens": 90,
            "max_tenant_requests": 9,
        },
        kinds=("plain", "priorities", "hurried"),
    ),
    "grammars": Scenario(
        seed=6,
        settings={"scheduling_policy": "shortest-prompt", "prefill_spread_steps": 2},
        kinds=("grammars", "grammars", "plain"),
        mask_costs=(0, 10**5, 10**7, 4 * 10**7, 10**8, 0, 0),
    ),
    "store": Scenario(
        seed=7,
        capacity=STORE,
        kinds=("turns", "plain"),
        weights={"clear": 0.3, "lose": 1.5, "lose_stored_blocks": 0.5, "fail": 0.3},
    ),
    "shared store": Scenario(
        seed=8, capacity=SHARED, kinds=("turns", "plain"), weights={"clear": 0.3, "lose": 1.0}
    ),
    "drains": Scenario(
        seed=9,
        capacity={"num_gpu_blocks": 40, "num_cpu_blocks": 40},
        roles=(BOTH,) * 3,
        kinds=("plain", "forks", "beams", "grammars"),
        weights={"drain": 1.0, "lose": 0.2, "fail": 0.3},
        longest=70,
    ),
    "roles": Scenario(
        seed=10,
        capacity={"num_gpu_blocks": 30, "num_cpu_blocks": 30},
        roles=(PREFILL, DECODE, DECODE),
        kinds=("plain", "forks", "turns"),
        weights={"drain": 0.3, "fail": 0.3},
    ),
    "turns": Scenario(
        seed=15,
        settings={"max_loras": 1},
        kinds=("adapters", "grammars"),
        mask_costs=(10**7, 4 * 10**7, 10**8),
    ),
    "faults": Scenario(
        seed=11,
        capacity=ALONE,
        kinds=("plain", "resumed", "scored"),
        weights={"lose": 3.0, "fail": 1.0, "shrink": 0.2},
    ),
    "pipeline": Scenario(
        seed=12,
        capacity={
            "pipeline_parallel_size": 3,
            "max_steps_in_flight": 4,
            "max_num_seqs": 12,
            "num_gpu_blocks": 60,
            "max_num_batched_tokens": 48,
        },
        kinds=("plain", "forks", "resumed"),
    ),
    "drafts": Scenario(
        seed=21,
        capacity={"num_gpu_blocks": 30, "max_num_batched_tokens": 48, "max_draft_tokens": 6},
        kinds=("plain", "forks", "beams", "predicted", "grammars"),
        draft_kinds="ggmobg" + 9 * "n",
        mask_costs=(10**4, 10**5),
        longest=60,
    ),
    "audits": Scenario(
        seed=22,
        settings={"audit_cpu": 0.5},
        capacity={"num_gpu_blocks": 60, "max_draft_tokens": 4, "arithmetic": ARITHMETIC},
        kinds=("plain", "forks", "grammars", "turns"),
        draft_kinds="ggmobn",
        weights={"add": 2.0, "wait": 0.1, "drain": 0.3, "fail": 0.3},
    ),
    "vectors": Scenario(seed=13, pooling=MEAN, kinds=("vectors",)),
    "vectors of whole prompts": Scenario(seed=14, pooling=BOTH_WAYS, kinds=("vectors",)),
}


class History:
    """What happens to a cluster under a scenario."""

    def __init__(self, path: Path, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(scenario.seed)
        model = replace(MODEL, pooling=scenario.pooling, adapters=tuple(ADAPTERS[:2]))
        config = SchedulerConfig(**{"audit_cpu": 0.0} | scenario.settings)
        self.cluster = RecordedCluster(path, config, model)
        self.router = self.cluster.router()
        self.requests: dict[int, Request] = {}
        self.gone: set[int] = set()
        """Handles of requests that no router waits for any more."""
        self.counts = Counter[str]()
        for role in scenario.roles:
            self.join(role)

    @property
    def live(self) -> list[int]:
        return [handle for handle in self.requests if handle not in self.gone | self._ended]

    @property
    def _ended(self) -> set[int]:
        return set(self.router.ended)

    def join(self, role: WorkerRole) -> None:
        rng, number = self.rng, self.counts["workers"]
        self.counts["workers"] += 1
        worker = self.cluster.join(
            replace(CAPACITY, **self.scenario.capacity),
            address=f"w{number % 4}:1",
            epoch=rng.getrandbits(64),
            role=role,
            mask_costs=self.scenario.mask_costs,
        )
        worker.fake.draft_kinds = self.scenario.draft_kinds
        assert worker.fake.store is not None
        worker.fake.store.endings = self._endings()
        worker.fake.store.heeds_cancels = rng.random() < 0.7

    def _endings(self) -> Iterator[Ending]:
        """Most moves end well, soon or late; the others in part, or by an error."""
        while True:
            if self.rng.random() < 0.8:
                yield Ending(self.rng.choice([0, 1, 2]))
            else:
                failed = self.rng.choice(["", "", "UNAVAILABLE"])
                yield Ending(self.rng.choice([0, 2, 5]), self.rng.choice([0, 1, 2]), failed)

    def add(self) -> None:
        handle = len(self.requests) + 1
        kind = self.rng.choice(self.scenario.kinds)
        request = Request(**{**self._plain(handle), **getattr(self, f"_{kind}")(handle)})
        self.requests[handle] = request
        self.cluster.ask(self.router, request)

    def _plain(self, handle: int) -> dict[str, Any]:
        rng = self.rng
        tenant = rng.choice(["", "", "other"])
        return {
            "handle": handle,
            "request_id": f"r{handle}",
            "prompt_token_ids": [rng.randrange(1, 4)] * rng.choice([1, 5, 9, 13, 14, 33]),
            "params": SamplingParams(stop_token_ids=rng.choice([(), (3, 14, 15)])),
            "max_tokens": rng.randrange(1, self.scenario.longest),
            "max_tokens_is_default": rng.random() < 0.2,
            "num_sequences": rng.choice([1, 1, 1, 2]),
            "tenant": tenant,
            "payer": tenant or rng.choice(["a", "b"]),
            "cache_salt": rng.choice(["", "", "", "salt"]),
        }

    def _forks(self, handle: int) -> dict[str, Any]:
        return {"num_sequences": self.rng.choice([2, 3])}

    def _beams(self, handle: int) -> dict[str, Any]:
        return {"num_sequences": 1, "beam_search": self.rng.choice(SEARCHES)}

    def _scored(self, handle: int) -> dict[str, Any]:
        return {"params": SamplingParams(num_prompt_logprobs=0)}

    def _turns(self, handle: int) -> dict[str, Any]:
        """The next turn of a conversation, if one has ended well."""
        ended = [self.requests[h] for h, end in self.router.ended.items() if not end.failure]
        if not ended:
            return {}
        before = self.rng.choice(ended[-6:])
        answer = self.router.tokens[before.handle, 0]
        prompt = [*before.prompt_token_ids, *answer, 7][:80]
        return {
            "prompt_token_ids": prompt,
            "tenant": before.tenant,
            "cache_salt": before.cache_salt,
            "max_tokens": self.rng.randrange(1, 9),
        }

    def _named(self, handle: int) -> dict[str, Any]:
        fields = self._turns(handle)
        num_tokens = len(fields.get("prompt_token_ids", ()))
        return fields | {"snapshot_positions": (9, num_tokens)} if num_tokens > 9 else fields

    def _adapters(self, handle: int) -> dict[str, Any]:
        assert self.cluster.model.adapters
        return {"adapter": self.rng.choice(self.cluster.model.adapters).sha256}

    def _priorities(self, handle: int) -> dict[str, Any]:
        return {"priority": self.rng.randrange(-2, 3)}

    def _hurried(self, handle: int) -> dict[str, Any]:
        return {"timeout_ns": self.rng.choice([10**7, 10**9])}

    def _grammars(self, handle: int) -> dict[str, Any]:
        regex = self.rng.choice(["a", "b", "c", "d", "("])
        cost = GrammarCost(cpu_ns=10**6, peak_bytes=len(regex) * (10 << 20))
        params = SamplingParams(structured_output=("regex", regex), grammar_cost=cost)
        return {"params": params}

    def _resumed(self, handle: int) -> dict[str, Any]:
        """Goes on where another scheduler has stopped; no sequence has ended."""
        prompt = [self.rng.randrange(1, 4)] * 9
        delivered = []
        for branch in range(2):
            tokens = expected(prompt, num_tokens=self.rng.randrange(1, 6), branch=branch)
            tokens = tokens[: tokens.index(EOS)] if EOS in tokens else tokens
            delivered += [DeliveredSequence(tokens or [5], None)]
        if any(one.token_ids == [5] for one in delivered):
            return {}
        return {
            "prompt_token_ids": prompt,
            "params": SamplingParams(),
            "max_tokens": 12,
            "num_sequences": 2,
            "attempt": 1,
            "nonce": handle,
            "age_ns": 10**8,
            "delivered": tuple(delivered),
        }

    def _predicted(self, handle: int) -> dict[str, Any]:
        return {"prediction": (5, 6, 7), "no_speculation": self.rng.random() < 0.2}

    def _vectors(self, handle: int) -> dict[str, Any]:
        rng = self.rng
        return {
            "prompt_token_ids": [rng.randrange(1, 4)] * rng.choice([1, 2, 5, 11, 13, 24, 36]),
            "params": SamplingParams(),
            "max_tokens": 1,
            "num_sequences": 1,
            "pooling": PoolingParams(num_skipped_tokens=rng.choice([0, 1])),
        }

    def step(self) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            self.turn(self.rng.choice(self.cluster.workers))

    def turn(self, worker: RecordedWorker, **answer: Any) -> bool:
        """Lets one worker plan, answer or compile; False if there is nothing to do."""
        self.cluster.wait(self.rng.choice([0.0005, 0.002, 0.01]))
        plans = answer or self.rng.random() < 0.6
        is_busy = self.cluster.plan(worker) if plans else False
        if self.rng.random() < 0.6 or answer:
            is_busy |= self.cluster.answer(worker, **answer)
        if self.rng.random() < 0.3:
            is_busy |= self.cluster.compile(worker, faults={("regex", "("): "no such regex"})
        return is_busy

    def fail(self) -> None:
        self.turn(self.rng.choice(self.cluster.workers), fails=True)

    def shrink(self) -> None:
        self.turn(self.rng.choice(self.cluster.workers), most_tokens=16)

    def abort(self) -> None:
        if self.live:
            self.gone.add(handle := self.rng.choice(self.live))
            self.cluster.abort(self.router, handle)

    def stop(self) -> None:
        """Ends a branch at a stop string."""
        began = [key for key, tokens in self.router.tokens.items() if tokens]
        if began := [key for key in began if key[0] in self.live]:
            handle, index = key = self.rng.choice(began)
            keep = self.rng.randrange(1, len(self.router.tokens[key]) + 1)
            self.cluster.stop(self.router, handle, index, keep_tokens=keep)

    def lose(self) -> None:
        worker = self.rng.choice(self.cluster.workers)
        self._leave(worker)

    def _leave(self, worker: RecordedWorker) -> None:
        role = worker.loop.asked_role
        self.cluster.leave(worker)
        self.join(role)

    def drain(self) -> None:
        accepting = [one for one in self.cluster.workers if not one.loop.is_draining]
        if len(accepting) > 1:
            self.cluster.drain(self.rng.choice(accepting))

    def leave_router(self) -> None:
        """A router goes with its requests; another one comes."""
        self.gone |= set(self.live)
        self.cluster.leave_router(self.router)

    def clear(self) -> None:
        self.cluster.clear_cache(self.rng.choice([None, "other"]))

    def lose_stored_blocks(self) -> None:
        for block_hash in sorted(self.cluster.kept)[:: self.rng.randrange(1, 4)]:
            del self.cluster.kept[block_hash]

    def change_adapters(self) -> None:
        """Loads the last adapter, or unloads it if no request lives that may need it."""
        loaded = self.cluster.model.adapters
        if len(loaded) < len(ADAPTERS):
            self.cluster.change_adapters(*ADAPTERS)
        elif not self.live:
            self.cluster.change_adapters(*ADAPTERS[:2])

    def wait(self) -> None:
        self.cluster.wait(self.rng.choice([0.2, 1.0, 5.0]))
        self.cluster.tick()

    def run(self) -> None:
        """Lets everything happen, and all requests end."""
        weights = WEIGHTS | dict(self.scenario.weights)
        names = self.rng.choices(list(weights), list(weights.values()), k=NUM_EVENTS)
        for name in names:
            event: Callable[[], None] = getattr(self, name)
            event()
            self._let_drained_leave()
            self.cluster.check()
        self._finish()
        self.cluster.close()
        self._check_answers()

    def _let_drained_leave(self) -> None:
        for worker in list(self.cluster.workers):
            if worker.loop.is_drained and not worker.sent:
                self._leave(worker)

    def _finish(self) -> None:
        for _ in range(MOST_TURNS):
            is_busy = bool(sum(self.turn(worker) for worker in list(self.cluster.workers)))
            self._let_drained_leave()
            has_steps = any(worker.sent for worker in self.cluster.workers)
            is_moving = any(one.loop.next_poll_at < float("inf") for one in self.cluster.workers)
            has_work = has_steps or is_moving or self.cluster.has_blocks  # an audit keeps some
            if not (is_busy or has_work or self.cluster.num_requests):
                return
            if not is_busy:
                self.wait()
        raise AssertionError(f"still busy after {MOST_TURNS} turns: {self.live}")

    def _check_answers(self) -> None:
        """Asserts that each request that no one aborted has ended, with the right tokens."""
        assert not self.live
        self.counts["audits"] = self.cluster.audits.num_equal
        assert not self.cluster.audits.num_different
        for handle, end in self.router.ended.items():
            request = self.requests[handle]
            self.counts["ended" if end.failure is None else end.failure.code.name] += 1
            if end.failure is not None or request.beam_search is not None:
                continue
            if request.pooling is not None:
                vector = pooled_vector(request.prompt_token_ids)
                assert self.router.vectors[handle].tolist() == vector.tolist()
                continue
            for index in range(request.num_sequences):
                delivered = request.delivered[index].token_ids if request.delivered else []
                tokens = delivered + self.router.tokens[handle, index]
                prompt = request.prompt_token_ids
                assert tokens == expected(prompt, num_tokens=len(tokens), branch=index)


def record_history(path: Path, scenario: Scenario) -> Counter[str]:
    """Makes a recording; returns how often what happened."""
    history = History(path, scenario)
    history.run()
    return history.counts
