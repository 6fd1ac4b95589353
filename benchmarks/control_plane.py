"""The scheduler's CPU for one step: plan, encode, parse the answer, check it, update, tell routers.

    python -m benchmarks.control_plane [--sequences 32 256 1024] [--beside nothing prompts turnover]

Sequences decode, two steps are in flight, and there is no worker: answers are made up. Beside the
sequences is nothing, or one prompt of 8,192 tokens after another in chunks of 512, or an eighth of
them end after 64 tokens and others follow. CPU-milliseconds: the median of each part over the
steps, the sum of the medians, and the mean of all parts together; and that mean for each token.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from signalbox_contract.columns import pack_int32, pack_int64
from signalbox_contract.request import Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.step import encode_step
from signalbox_contract.step_result import decode_result
from signalbox_contract.updates import RequestUpdates
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_scheduler.config import CacheShape, StepLimits, WorkerConfig
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import new_group
from signalbox_scheduler.results.result_validation import find_fault
from signalbox_scheduler.results.step_outcome import router_updates
from signalbox_scheduler.workers.engine.scheduler import Scheduler

PROMPT_TOKENS = 512
LONG_PROMPT_TOKENS = 8192
CHUNK_TOKENS = 512
SHORT_OUTPUT = 64
FIRST_STEPS = 8
"""Steps after which the sequences of the beginning decode."""
BESIDE = ("nothing", "prompts", "turnover")
PARTS = ("plan", "encode", "parse", "check", "update", "messages")
VOCAB_SIZE = 1 << 15
T = TypeVar("T")


class _NoRouter:
    def send(self, updates: RequestUpdates) -> None: ...


@dataclass(slots=True)
class Load:
    """One scheduler, its requests, and how long the parts of its steps took."""

    scheduler: Scheduler
    lengths: tuple[int, int] | None = None
    """Tokens of prompt and output of requests of which one waits all the time; None is no such."""
    times: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PARTS})
    router: _NoRouter = field(default_factory=_NoRouter)
    handles: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    num_tokens: int = 0
    """Tokens of the answers since the times are taken."""

    def ask(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Adds a request with a prompt that no other one begins with."""
        handle = next(self.handles)
        request = Request(
            request_id=f"r{handle}",
            handle=handle,
            prompt_token_ids=[handle] * num_prompt_tokens,
            params=SamplingParams(),
            max_tokens=max_tokens,
        )
        group = new_group(request, reply_to=self.router, now=float(handle))
        group.begin()
        self.scheduler.admission.add(group)

    def step(self) -> None:
        """Plans steps until two are in flight, and answers the oldest."""
        scheduler = self.scheduler
        now = float(scheduler.num_steps)
        if self.lengths is not None and not scheduler.admission.groups:
            self.ask(*self.lengths)
        while len(scheduler.in_flight) < 2:
            self._timed("plan", lambda: scheduler.schedule(now))
            new = scheduler.in_flight[-1].to_step
            self._timed("encode", lambda new=new: encode_step(new(epoch=1)).SerializeToString())
        plan = scheduler.in_flight[0]
        data = answer_to(plan)
        self.num_tokens += sum(map(bool, plan.num_samples))
        result = self._timed(
            "parse", lambda: decode_result(pb.ExecuteModelResponse.FromString(data))
        )
        fault = self._timed("check", lambda: find_fault(plan, result, vocab_size=VOCAB_SIZE))
        assert fault is None
        outcome = self._timed("update", lambda: scheduler.update(result, now))
        self._timed("messages", lambda: router_updates(outcome, now=now))

    def _timed(self, part: str, call: Callable[[], T]) -> T:
        start = time.process_time()
        result = call()
        self.times[part].append((time.process_time() - start) * 1e3)
        return result


def make_load(num_sequences: int, *, beside: str, num_steps: int) -> Load:
    """Returns a load with so many sequences that decode."""
    num_slots = num_sequences + (beside == "prompts")
    longest = LONG_PROMPT_TOKENS + PROMPT_TOKENS + num_steps
    worker = WorkerConfig(
        limits=StepLimits(
            max_num_seqs=num_slots, max_num_batched_tokens=num_sequences * PROMPT_TOKENS
        ),
        cache=CacheShape(
            block_size=16, num_gpu_blocks=num_slots * (longest // 16 + 2), max_model_len=longest
        ),
        grammar_bytes=1,  # no request has a structured output
    )
    scheduler = Scheduler(worker, admission=AdmissionQueue(), cost=CostModel())
    load = Load(scheduler)
    num_short = num_sequences // 8 if beside == "turnover" else 0
    for i in range(num_sequences):
        ends_after = FIRST_STEPS + i % SHORT_OUTPUT  # in turns
        load.ask(PROMPT_TOKENS, ends_after if i < num_short else 2 * FIRST_STEPS + num_steps)
    for _ in range(FIRST_STEPS):
        load.step()
    scheduler.token_budget = num_sequences + CHUNK_TOKENS
    load.lengths = {"prompts": (LONG_PROMPT_TOKENS, 16), "turnover": (64, SHORT_OUTPUT)}.get(beside)
    return load


def answer_to(plan: StepPlan) -> bytes:
    ids = [seq.seq_id for seq, num in zip(plan.seqs, plan.num_samples, strict=True) if num]
    response = pb.ExecuteModelResponse(
        step_id=plan.step_id, seq_ids=pack_int64(ids), token_ids=pack_int32([7] * len(ids))
    )
    return bytes(response.SerializeToString())


def measure(num_sequences: int, *, beside: str, num_steps: int) -> str:
    load = make_load(num_sequences, beside=beside, num_steps=num_steps)
    load.times, load.num_tokens = {name: [] for name in PARTS}, 0
    for _ in range(num_steps):
        load.step()
    load.scheduler.check()
    medians = [statistics.median(values) for values in load.times.values()]
    mean = statistics.mean(map(sum, zip(*load.times.values(), strict=True)))
    per_token_us = 1e3 * sum(map(sum, load.times.values())) / load.num_tokens
    figures = (*medians, sum(medians), mean, per_token_us)
    cells = " | ".join(f"{value:.3f}" for value in figures)
    return f"| {num_sequences} | {beside} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[32, 256, 1024])
    parser.add_argument("--beside", nargs="+", choices=BESIDE, default=list(BESIDE))
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    print(
        f"| sequences | beside | {' | '.join(PARTS)} | sum | mean | µs CPU/token |\n|{'---|' * 11}"
    )
    for num_sequences in options.sequences:
        for beside in options.beside:
            row = measure(num_sequences, beside=beside, num_steps=options.steps)
            print(row, flush=True)


if __name__ == "__main__":
    main()
