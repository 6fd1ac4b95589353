"""Steps of tensor-parallel ranks on a CPU, natively and in PyTorch, beside one process.

    python -m benchmarks.tensor_ranks [--ranks 2] [--rounds 30] [--cases "decode 1" ...]

Each rank has one thread. The model has made-up weights in float32, and the sizes of SmolLM2-135M
but for its 9 and 3 heads, which are 8 and 4. All arrangements compute the same batches in turn; the
figures are milliseconds, medians, with the median of each round's ratio of the first arrangement to
this one, and the seconds that each took to load.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cpu_step import BLOCK_SIZE, CASES, NUM_BLOCKS, in_words, make_batch, measure
from signalbox_contract.sections.block_moves import BlockMapping, BlockMoves
from signalbox_contract.step import Step
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service.runner_factory import make_runner

MOST_TOKENS = 2048
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def load(folder: str, *, ranks: int, threads: int, backend: str) -> Any:
    """Loads the model on some ranks, which have the threads together."""
    runner = make_runner(
        RunnerConfig(
            model=ModelConfig(model=folder, dtype="float32", load_format="dummy"),
            cache=CacheConfig(block_size=BLOCK_SIZE, max_num_batched_tokens=MOST_TOKENS),
            device=DeviceConfig(device="cpu", num_threads=threads, cpu_backend=backend),
            parallel=ParallelConfig(tensor_parallel_size=ranks),
        )
    )
    runner.init_cache_engine(num_gpu_blocks=NUM_BLOCKS, num_cpu_blocks=0)
    # A page that was never written is read from the cache.
    written = BlockMapping.of([(0, block) for block in range(1, NUM_BLOCKS)])
    runner.apply(Step(epoch=0, step_id=0, block_moves=BlockMoves(copy=written)))
    return runner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    cases = [case for case in CASES if case.num_seqs * case.num_new <= MOST_TOKENS]
    names = [case.name for case in cases]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    args = parser.parse_args()
    arrangements: dict[str, dict[str, Any]] = {
        "1 thread": {"ranks": 1, "threads": 1, "backend": "native"},
        f"{args.ranks} threads": {"ranks": 1, "threads": args.ranks, "backend": "native"},
        f"{args.ranks} ranks": {"ranks": args.ranks, "threads": args.ranks, "backend": "native"},
        "in PyTorch": {"ranks": args.ranks, "threads": args.ranks, "backend": "torch"},
    }
    runners: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        for name, arrangement in arrangements.items():
            began_at = time.monotonic()
            runners[name] = load(folder, **arrangement)
            print(f"{name}: loaded in {time.monotonic() - began_at:.1f} s")
    print(f"{'':16}" + "".join(f"{name:>24}" for name in runners))
    for case in (case for case in cases if case.name in args.cases):
        batch = make_batch(case, CONFIG["vocab_size"])  # type: ignore[arg-type]
        rounds = args.rounds if case.num_new == 1 else max(min(3, args.rounds), args.rounds // 6)
        seconds = measure(runners, batch, rounds)
        print(f"{case.name:16}" + "".join(in_words(seconds, name) for name in runners), flush=True)
    for runner in runners.values():
        if hasattr(runner, "close"):
            runner.close()


if __name__ == "__main__":
    main()
