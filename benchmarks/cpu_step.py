"""One step of a model on the CPU, in each form that it can run in: decode and prefill.

    python -m benchmarks.cpu_step MODEL... [--forms torch native auto gguf int8 int4]
        [--rounds 30] [--threads 2] [--dtype bfloat16] [--cases "prefill 2048" "prefill 8064"]
        [--kv-cache-dtypes auto bfloat16 int8 fp8]

All forms, of all models and with all types of K and V, compute the same batches in turn, so that
what else the machine does hurts all alike; the figures are milliseconds, medians, with the median
of each round's ratio of the first form to this one. "torch" and "native" hold floats, the others
run quantised weights; "auto" is what a checkpoint or a file consists of. Greedy rows, random
tokens. Below a case stand the milliseconds of all threads by kind of op, in one more step.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.largest_batch import largest_batch
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service.runner_factory import make_runner as make_loaded

BLOCK_SIZE = 16
NUM_BLOCKS = 600
FORMS = ("torch", "native", "auto", "gguf", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences that compute `num_new` tokens each and have `context` of them afterwards."""

    name: str
    num_seqs: int
    num_new: int
    context: int
    draws: int = 1
    """Tokens of each, its last ones, at which it draws."""


CASES = (
    Case("decode 1", 1, 1, 192),
    Case("decode 8", 8, 1, 192),
    Case("decode 32", 32, 1, 192),
    Case("decode 4 at 2048", 4, 1, 2048),
    Case("decode 1 at 8192", 1, 1, 8192),
    Case("prefill 8 x 128", 8, 128, 128),
    Case("prefill 2048", 1, 2048, 2048),
    Case("prefill 8064", 1, 8064, 8064),
)


def make_runner(args: argparse.Namespace, model: str, form: str, kv_dtype: str) -> Any:
    is_quantised = form not in ("torch", "native")
    backend = "native" if is_quantised else form
    runner: Any = make_loaded(
        RunnerConfig(
            model=ModelConfig(
                model=model, dtype=args.dtype, quantization=form if is_quantised else "none"
            ),
            cache=CacheConfig(block_size=BLOCK_SIZE, kv_cache_dtype=kv_dtype),
            device=DeviceConfig(device="cpu", num_threads=args.threads, cpu_backend=backend),
        )
    )
    runner.init_cache_engine(num_gpu_blocks=NUM_BLOCKS, num_cpu_blocks=0)
    runner.pools.gpu_pool[...] = 0  # a page that was never written is read from the cache
    return runner


def make_batch(case: Case, vocab_size: int) -> Batch:
    """Blocks are scattered, as they are after some time."""
    rng = np.random.default_rng(0)
    width = -(-case.context // BLOCK_SIZE)
    tables = rng.permutation(NUM_BLOCKS)[: case.num_seqs * width].reshape(case.num_seqs, width)
    new = np.arange(case.context - case.num_new, case.context)
    query_start = np.arange(case.num_seqs + 1) * case.num_new
    num_draws = case.num_seqs * case.draws
    rows = largest_batch(
        num_tokens=num_draws, num_seqs=num_draws, max_model_len=2, block_size=BLOCK_SIZE
    ).rows
    rows.temperature[:] = 0.0
    rows.token_index = (query_start[1:, None] - np.arange(case.draws, 0, -1)).ravel()
    return Batch(
        token_ids=rng.integers(0, vocab_size, case.num_seqs * case.num_new),
        positions=np.tile(new, case.num_seqs),
        slot_mapping=(tables[:, new // BLOCK_SIZE] * BLOCK_SIZE + new % BLOCK_SIZE).ravel(),
        query_start=query_start,
        context_lens=np.full(case.num_seqs, case.context),
        block_tables=tables.astype(np.int32),
        rows=rows,
    )


def measure(runners: dict[str, Any], batch: Batch, rounds: int) -> dict[str, list[float]]:
    """Returns seconds of each round; the first, which warms up, is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds + 1):
        for name, runner in runners.items():
            start = time.perf_counter()
            runner.execute(batch)
            seconds[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in seconds.items()}


def ops_in_words(runner: Any, batch: Batch) -> str:
    """Milliseconds of all threads by kind of op, the longest first."""
    runner.executor.program.begin_profile()
    runner.execute(batch)
    profile = sorted(runner.executor.program.end_profile().items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {ns / 1e6:.1f}" for kind, ns in profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["torch", "native"])
    parser.add_argument("--kv-cache-dtypes", nargs="+", default=["auto"], metavar="TYPE")
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    args = parser.parse_args()
    runners = {
        name_of(args, model, form, kv_dtype): make_runner(args, model, form, kv_dtype)
        for model in args.models
        for form in args.forms
        for kv_dtype in args.kv_cache_dtypes
    }
    print(f"{'':16}" + "".join(f"{name:>24}" for name in runners))
    vocab_size = min(runner.model.vocab_size for runner in runners.values())
    for case in (case for case in CASES if case.name in args.cases):
        batch = make_batch(case, vocab_size)
        rounds = args.rounds if case.num_new == 1 else max(min(3, args.rounds), args.rounds // 6)
        seconds = measure(runners, batch, rounds)
        print(f"{case.name:16}" + "".join(in_words(seconds, form) for form in runners), flush=True)
        for form in (form for form in runners if "torch" not in form):
            print(f"    {form}: {ops_in_words(runners[form], batch)}", flush=True)


def name_of(args: argparse.Namespace, model: str, form: str, kv_dtype: str) -> str:
    name = form if len(args.kv_cache_dtypes) == 1 else f"{form} {kv_dtype}"
    return name if len(args.models) == 1 else f"{Path(model).name[-16:]} {name}"


def in_words(seconds: dict[str, list[float]], form: str) -> str:
    """Milliseconds of a form, and how many times faster than the first it is."""
    first = next(iter(seconds.values()))
    ratio = statistics.median(a / b for a, b in zip(first, seconds[form], strict=True))
    return f"{statistics.median(seconds[form]) * 1e3:17.1f} ({ratio:4.2f})"


if __name__ == "__main__":
    main()
