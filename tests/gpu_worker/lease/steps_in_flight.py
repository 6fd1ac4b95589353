"""Leases of a runner that launches, and steps that a scheduler would send them."""

from typing import Any

import numpy as np
import torch

from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.step import NewSequence
from signalbox_contract.step_result import StepResult
from signalbox_worker.batch.batch import Batch, Launched
from signalbox_worker.lease.execution_thread import Unfinished
from signalbox_worker.lease.lease import Lease
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.builders import make_new, make_step
from tests.gpu_worker.tiny_models import VOCAB

GREEDY = SamplingParams()
RANDOM = SamplingParams(temperature=1.0, seed=4)
PENALISED = SamplingParams(temperature=0.9, seed=2, frequency_penalty=0.8, repetition_penalty=1.3)
FILTERED = SamplingParams(temperature=1.2, seed=3, top_k=11, top_p=0.9)
STARVED = SamplingParams(min_tokens=6, stop_token_ids=tuple(range(40)))


def make_lease(runner: LocalRunner, tokenizer_json: bytes = b"") -> Lease:
    capacity = runner.profile()
    runner.init_cache_engine(num_gpu_blocks=40, num_cpu_blocks=0)
    return Lease(
        epoch=7,
        runner=runner,
        capacity=capacity,
        num_gpu_blocks=40,
        num_cpu_blocks=0,
        grammars=Grammars(runner.model, tokenizer_json=tokenizer_json),
    )


def make_sequences(*params: SamplingParams) -> list[NewSequence]:
    rng = np.random.default_rng(9)
    return [
        make_new(
            i,
            rng.integers(3, VOCAB, 5 + 6 * i).tolist(),
            list(range(5 * i, 5 * i + 5)),
            params=each,
        )
        for i, each in enumerate(params)
    ]


def finish(outcome: StepResult | Unfinished[StepResult]) -> StepResult:
    return outcome.finish() if isinstance(outcome, Unfinished) else outcome


class Steps:
    """Sends steps to a lease as a scheduler does, `depth` of them before it hears of the first."""

    def __init__(self, lease: Lease, depth: int) -> None:
        self.lease = lease
        self.depth = depth
        self.results: list[StepResult] = []
        self._under_way: list[StepResult | Unfinished[StepResult]] = []
        self._num_sent = 0

    def send(self, **fields: Any) -> None:
        self._num_sent += 1
        step = make_step(self._num_sent, **fields)
        self._under_way.append(self.lease.execute(step, arrived_ns=0))
        self.hear(until=self.depth - 1)

    def hear(self, until: int = 0) -> None:
        while len(self._under_way) > until:
            self.results.append(finish(self._under_way.pop(0)))

    def tokens(self) -> dict[int, list[int]]:
        self.hear()
        found: dict[int, list[int]] = {}
        for result in self.results:
            for seq_id, token in zip(
                result.seq_ids.tolist(), result.token_ids.tolist(), strict=True
            ):
                found.setdefault(seq_id, []).append(token)
        return found


def decode(steps: Steps, seq_ids: list[int], num_steps: int) -> None:
    for _ in range(num_steps):
        steps.send(running=dict.fromkeys(seq_ids, 1))


def raise_out_of_memory(batch: Batch) -> Launched:
    raise torch.OutOfMemoryError("CUDA out of memory")
