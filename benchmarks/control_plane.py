"""The scheduler's CPU for one decode step: plan, encode, parse the answer, update.

    python -m benchmarks.control_plane [--sequences 32 256 1024]

Prompts of 512 tokens, no worker: answers are made up. Medians over the steps, in milliseconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

from contract.columns import pack_int32, pack_int64
from contract.request import Request
from contract.sampling_params import SamplingParams
from contract.step import encode_step
from contract.step_result import decode_result
from contract.updates import RequestUpdates
from protos.worker.v1 import worker_pb2 as pb
from scheduler_svc.config import CacheShape, StepLimits
from scheduler_svc.planning.plan import StepPlan
from scheduler_svc.queue.admission_queue import AdmissionQueue
from scheduler_svc.requests.sequence_group import make_group, new_group
from scheduler_svc.scheduler import Scheduler

PROMPT_TOKENS = 512
T = TypeVar("T")


class _NoRouter:
    def send(self, updates: RequestUpdates) -> None: ...


def make_scheduler(num_sequences: int, *, num_steps: int) -> Scheduler:
    """A scheduler with so many sequences about to decode."""
    tokens = PROMPT_TOKENS + num_steps + 8
    scheduler = Scheduler(
        limits=StepLimits(
            max_num_seqs=num_sequences, max_num_batched_tokens=num_sequences * PROMPT_TOKENS
        ),
        cache=CacheShape(
            block_size=16, num_gpu_blocks=num_sequences * (tokens // 16 + 2), max_model_len=8192
        ),
        admission=AdmissionQueue(),
        grammar_bytes=1,  # no request has a structured output
    )
    for i in range(num_sequences):
        request = Request(
            request_id=f"r{i}",
            prompt_token_ids=[1] * PROMPT_TOKENS,
            params=SamplingParams(),
            max_tokens=num_steps + 8,
        )
        group = new_group(request, reply_to=_NoRouter(), now=float(i))
        scheduler.admission.add(make_group(group))
    return scheduler


def answer_to(plan: StepPlan) -> bytes:
    ids = [seq.seq_id for seq in plan.seqs]
    response = pb.ExecuteModelResponse(
        step_id=plan.step_id, seq_ids=pack_int64(ids), token_ids=pack_int32([7] * len(ids))
    )
    return bytes(response.SerializeToString())


def timed(times: list[float], call: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = call()
    times.append((time.perf_counter() - start) * 1e3)
    return result


def measure(num_sequences: int, *, num_steps: int) -> str:
    scheduler = make_scheduler(num_sequences, num_steps=num_steps)
    times: dict[str, list[float]] = {name: [] for name in ("plan", "encode", "parse", "update")}
    for step in range(num_steps + 1):
        plan = timed(times["plan"], lambda: scheduler.schedule(float(step)))  # noqa: B023
        assert plan is not None
        timed(
            times["encode"],
            lambda: encode_step(plan.to_step(epoch=1)).SerializeToString(),  # noqa: B023
        )
        data = answer_to(plan)
        answer = timed(
            times["parse"],
            lambda: decode_result(pb.ExecuteModelResponse.FromString(data)),  # noqa: B023
        )
        timed(times["update"], lambda: scheduler.update(answer, float(step)))  # noqa: B023
    medians = [statistics.median(values[1:]) for values in times.values()]
    cells = " | ".join(f"{value:.3f}" for value in (*medians, sum(medians)))
    return f"| {num_sequences} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--sequences", type=int, nargs="+", default=[32, 256, 1024])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    print("| sequences | plan | encode | parse | update | sum |\n|---|---|---|---|---|---|")
    for num_sequences in options.sequences:
        print(measure(num_sequences, num_steps=options.steps), flush=True)


if __name__ == "__main__":
    main()
