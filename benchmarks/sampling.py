"""Sampling for a batch of mixed requests, beside the forward pass of its decode step.

    python -m benchmarks.sampling MODEL [--rounds 20] [--threads 2] [--dtype bfloat16] [--seqs 64]

Sequences of random tokens decode under parameters that users mix: greedy, temperature alone,
nuclei, top_k, min_p, typical_p, penalties, biases, log probabilities. A row of the table gives all
of them the same parameters, the last one mixes them. `pack` is what building the batch's columns
takes. The same batches go through the native sampler and through PyTorch's, in turn.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from signalbox_contract.columns import int32s, int64s
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.step import NewSequence, Step
from signalbox_worker.batch.arrays import FloatArray, Int64Array
from signalbox_worker.batch.batch import BatchOutput
from signalbox_worker.batch.sampling_rows import SampleRows
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.native.executor import NativeExecutor
from signalbox_worker.sampling.grammars import Grammars
from signalbox_worker.sampling.torch_sampler import TorchSampler
from signalbox_worker.service.runner_factory import make_runner as make_loaded

BLOCK_SIZE = 16
CONTEXT = 192
HOT = 1.5
"""A temperature that makes nuclei wide."""

CASES = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=1.0),
    "top_p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "top_p 0.9, flat": SamplingParams(temperature=HOT, top_p=0.9),
    "top_k 50, top_p 0.95": SamplingParams(temperature=1.0, top_k=50, top_p=0.95),
    "min_p 0.05": SamplingParams(temperature=1.0, min_p=0.05),
    "typical_p 0.9": SamplingParams(temperature=1.0, typical_p=0.9),
    "penalties": SamplingParams(
        temperature=1.0, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1
    ),
    "bias, bad words": SamplingParams(
        temperature=1.0, logit_bias=((5, 1.0), (99, -5.0)), bad_words=((7,), (8, 9))
    ),
    "logprobs 5": SamplingParams(num_logprobs=5),
    "all at once": SamplingParams(
        temperature=HOT,
        top_p=0.9,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        logit_bias=((5, 1.0),),
        num_logprobs=5,
    ),
}


def make_runner(args: argparse.Namespace) -> LocalRunner:
    num_blocks = args.seqs * (-(-(CONTEXT + 4 * args.rounds * 20) // BLOCK_SIZE))
    runner = make_loaded(
        RunnerConfig(
            model=ModelConfig(model=args.model, dtype=args.dtype, quantization="none"),
            cache=CacheConfig(block_size=BLOCK_SIZE, max_num_seqs=args.seqs),
            device=DeviceConfig(device="cpu", num_threads=args.threads, cpu_backend="native"),
        )
    )
    assert isinstance(runner.executor, NativeExecutor)
    runner.init_cache_engine(num_gpu_blocks=num_blocks, num_cpu_blocks=0)
    return runner


def make_table(runner: LocalRunner, params: Sequence[SamplingParams], rounds: int) -> SequenceTable:
    """Returns sequences that look as if all but their last token were computed."""
    rng = np.random.default_rng(0)
    each = -(-(CONTEXT + rounds + 1) // BLOCK_SIZE)
    table = SequenceTable(
        model=runner.model,
        capacity=WorkerCapacity(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=each * len(params),
            num_cpu_blocks=0,
            block_bytes=1,
            max_num_seqs=len(params),
            max_num_batched_tokens=len(params),
        ),
        num_gpu_blocks=each * len(params),
        grammars=Grammars(runner.model, tokenizer_json=b""),
    )
    new = [
        NewSequence(
            seq_id=i,
            branch=0,
            token_ids=rng.integers(5, runner.model.vocab_size, CONTEXT).tolist(),
            num_prompt_tokens=CONTEXT // 2,
            num_computed_tokens=CONTEXT - 1,
            num_new_tokens=1,
            block_table=list(range(i * each, (i + 1) * each)),
            num_samples=1,
            params=dataclasses.replace(one, seed=i),
        )
        for i, one in enumerate(params)
    ]
    table.append_tokens(runner.execute(table.apply(Step(epoch=1, step_id=1, new=new))))
    return table


def measure(
    runner: LocalRunner, params: Sequence[SamplingParams], rounds: int
) -> tuple[float, float, float]:
    """Returns the median milliseconds of packing, forward pass and sampling of a decode step."""
    table = make_table(runner, params, rounds)
    ids, ones = np.arange(len(params)), np.ones(len(params), dtype=np.int32)
    times = []
    for step_id in range(rounds):
        start = time.perf_counter_ns()
        batch = table.apply(
            Step(
                epoch=1,
                step_id=step_id,
                running_seq_ids=int64s(ids.tolist()),
                running_num_new_tokens=int32s(ones.tolist()),
            )
        )
        packed = time.perf_counter_ns() - start
        samples = runner.execute(batch)
        table.append_tokens(samples)
        times.append((packed, samples.forward_ns, samples.sample_ns))
    packed, forward, sample = (
        statistics.median(column) / 1e6 for column in zip(*times, strict=True)
    )
    return packed, forward, sample


class OfArrays:
    """PyTorch's sampler for the logits of a native step."""

    def __init__(self, sampler: TorchSampler) -> None:
        self._sampler = sampler

    def __call__(
        self, logits: FloatArray, rows: SampleRows, logits_row: Int64Array | None = None
    ) -> BatchOutput:
        return self._sampler(torch.from_numpy(logits), rows, logits_row)


def use(runner: LocalRunner, sampler: Any) -> None:
    """Gives a loaded model another sampler."""
    runner.executor.sampler = sampler


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seqs", type=int, default=64)
    args = parser.parse_args()
    runner = make_runner(args)
    native = runner.executor.sampler
    plain = OfArrays(TorchSampler(vocab_size=runner.model.vocab_size, device=torch.device("cpu")))
    mixed = list(CASES.values()) * -(-args.seqs // len(CASES))
    cases = {name: [params] * args.seqs for name, params in CASES.items()}
    print("| parameters | pack ms | forward ms | sample ms | of the step | PyTorch's sample ms |")
    print("|---|---|---|---|---|---|")
    for name, params in (cases | {"mixed": mixed[: args.seqs]}).items():
        use(runner, native)
        packed, forward, sample = measure(runner, params, args.rounds)
        use(runner, plain)
        slow = measure(runner, params, max(2, args.rounds // 5))[2]
        share = (packed + sample) / (packed + forward + sample)
        print(
            f"| {name} | {packed:.2f} | {forward:.1f} | {sample:.2f} | {share:.1%} | {slow:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
