"""A runner without a device, and the steps that a scheduler would send it."""

import dataclasses
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gpu.models import LLAMA_3_8B
from benchmarks.host_time.no_device import CAPABILITY, META
from signalbox_contract.columns import int32s, int64s
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.step import NewSequence, Step
from signalbox_contract.step_result import StepResult
from signalbox_kernels import triton
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device.graphs import GraphRecorder
from signalbox_worker.lease.execution_thread import Unfinished
from signalbox_worker.lease.lease import Lease
from signalbox_worker.runner.executors import executor_factory
from signalbox_worker.runner.loading import loaded_model
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.sampling.grammars import Grammars
from signalbox_worker.service.runner_factory import make_runner as load_runner

BLOCK_SIZE = 16
NUM_DECODES = 256
MAX_TOKENS = 8192
CONTEXT = 512
_BLOCKS_EACH = 4 * CONTEXT // BLOCK_SIZE
_RANDOM = SamplingParams(temperature=0.8, top_p=0.95, top_k=50, seed=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Content of a step beside the sequences that decode."""

    params: SamplingParams = _RANDOM
    others: SamplingParams | None = None
    """Parameters of one sequence in eight; None: as all."""
    prompt_tokens: int = 0


CASES = {
    "decode 256": Case(),
    "mixed": Case(prompt_tokens=512),
    "decode 256, greedy": Case(params=SamplingParams()),
    "decode 256, some with penalties": Case(
        others=dataclasses.replace(_RANDOM, presence_penalty=0.5)
    ),
    "decode 256, some with log probabilities": Case(
        others=dataclasses.replace(_RANDOM, num_logprobs=5)
    ),
}


def make_runner(
    folder: Path,
    recorder: GraphRecorder,
    *,
    enforce_eager: bool = False,
    config: Mapping[str, object] = LLAMA_3_8B,
    **forms: Any,
) -> LocalRunner:
    """Returns a model with Triton's kernels and sampler, without data.

    Args:
        config: the model's config.json.
        forms: `quantization`, `kv_cache_dtype`, `attention_backend` and `linear_backend`, as of the
            settings.
    """
    from signalbox_worker.sampling.triton_sampler import TritonSampler

    (folder / "config.json").write_text(json.dumps(config))
    triton.register_ops(META.type)
    with (
        patch.object(executor_factory, "recorder_for", lambda _: recorder),
        patch.object(loaded_model, "_device", lambda *_: META),
        patch.object(loaded_model, "compute_capability", lambda _: CAPABILITY),
        patch.object(loaded_model, "dummy_placement", lambda placement: placement),
        patch.object(loaded_model, "make_sampler", lambda *_, **__: TritonSampler(device=META)),
    ):
        runner = load_runner(
            RunnerConfig(
                model=ModelConfig(
                    model=str(folder),
                    load_format="dummy",
                    dtype="bfloat16",
                    quantization=forms.get("quantization", "auto"),
                ),
                cache=CacheConfig(
                    block_size=BLOCK_SIZE,
                    max_num_seqs=2 * NUM_DECODES,
                    max_num_batched_tokens=MAX_TOKENS,
                    swap_space=0,
                    kv_cache_dtype=forms.get("kv_cache_dtype", "auto"),
                ),
                device=DeviceConfig(
                    device="cpu",
                    cpu_backend="torch",
                    attention_backend=forms.get("attention_backend", "triton"),
                    linear_backend=forms.get("linear_backend", "auto"),
                    enforce_eager=enforce_eager,
                ),
            )
        )
    assert isinstance(runner, LocalRunner)
    return runner


@dataclass(slots=True)
class _Scheduler:
    """Sends the steps of one case."""

    case: Case
    lease: Lease
    step_id: int = 0
    flying: deque[StepResult | Unfinished[StepResult]] = field(default_factory=deque)
    prompts: deque[int] = field(default_factory=deque)
    """Sequences that computed their prompt in the steps in flight."""

    def send(self, step: Step) -> None:
        self.flying.append(self.lease.execute(step, arrived_ns=0))
        if len(self.flying) > 1:
            oldest = self.flying.popleft()
            if isinstance(oldest, Unfinished):
                oldest.finish()

    def begin(self) -> Step:
        new = [self.new_sequence(i, i, CONTEXT) for i in range(NUM_DECODES)]
        self.step_id = 1
        return Step(epoch=1, step_id=1, new=[dataclasses.replace(n, num_new_tokens=1) for n in new])

    def new_sequence(self, seq_id: int, place: int, num_tokens: int) -> NewSequence:
        params = self.case.params
        if self.case.others is not None and seq_id % 8 == 0:
            params = self.case.others
        return NewSequence(
            seq_id=seq_id,
            branch=0,
            token_ids=np.arange(5, 5 + num_tokens).tolist(),
            num_prompt_tokens=num_tokens,
            num_computed_tokens=num_tokens - 1 if seq_id < NUM_DECODES else 0,
            num_new_tokens=num_tokens,
            block_table=list(range(place * _BLOCKS_EACH, (place + 1) * _BLOCKS_EACH)),
            num_samples=1,
            params=dataclasses.replace(params, seed=seq_id),
        )

    def next(self) -> Step:
        self.step_id += 1
        new: list[NewSequence] = []
        finished: list[int] = []
        if self.case.prompt_tokens:
            seq_id = NUM_DECODES + self.step_id
            place = NUM_DECODES + self.step_id % 4
            new = [self.new_sequence(seq_id, place, self.case.prompt_tokens)]
            self.prompts.append(seq_id)
            if len(self.prompts) > 2:  # its token is known by now
                finished = [self.prompts.popleft()]
        return Step(
            epoch=1,
            step_id=self.step_id,
            new=new,
            finished=int64s(finished),
            running_seq_ids=int64s(list(range(NUM_DECODES))),
            running_num_new_tokens=int32s([1] * NUM_DECODES),
        )


def steps_of(runner: LocalRunner, case: Case) -> Iterator[None]:
    """Executes a step each time that it is asked for another."""
    num_blocks = (NUM_DECODES + 4) * _BLOCKS_EACH
    runner.init_cache_engine(num_gpu_blocks=num_blocks, num_cpu_blocks=0)
    capacity = WorkerCapacity(
        block_size=BLOCK_SIZE,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=0,
        block_bytes=1,
        max_num_seqs=2 * NUM_DECODES,
        max_num_batched_tokens=MAX_TOKENS,
    )
    lease = Lease(
        epoch=1,
        runner=runner,
        capacity=capacity,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=0,
        grammars=Grammars(runner.model, tokenizer_json=b""),
    )
    scheduler = _Scheduler(case, lease)
    scheduler.send(scheduler.begin())
    while True:
        scheduler.send(scheduler.next())
        yield
