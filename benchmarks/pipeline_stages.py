"""Two pipeline stages of a model on two cores beside one process on one core, in `LLM`.

    python -m benchmarks.pipeline_stages MODEL [--stages 2] [--seqs 32 8 1] [--tokens 64]
        [--prompt 2048]

Tokens per second of sequences that decode, with what the stages' own times allow: no step can end
sooner than the stage that has computed longest. Then the time to the first token of a prompt, as a
share of that of one process. One thread for each stage. A boundary is timed on a Unix socket
between two threads, from `send` to `take`.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from contract.step_result import Stages, sum_stages
from gpu_worker.batch.batch import Batch
from gpu_worker.ranks.service.rank_client import NextRank
from gpu_worker.ranks.service.rank_messages import HiddenStates, RankAddress
from gpu_worker.ranks.service.rank_servicer import RankServer, RankServicer
from gpu_worker.ranks.stage import Stage
from signalbox import LLM, SamplingParams

ROUNDS = 3


@dataclass
class StageTimes:
    """What the stages of the steps since `clear` have measured."""

    sums: Stages = ()
    row_bytes: list[int] = field(default_factory=list)

    def clear(self) -> None:
        self.sums = ()


def watch_stages() -> StageTimes:
    """Returns what has the times that reach the last stage, which is in this process."""
    times = StageTimes()
    execute = Stage.execute

    def executing(self: Stage, batch: Batch, **command: Any) -> Any:
        output = execute(self, batch, **command)
        times.sums = sum_stages(times.sums, output.stages)
        if batch.hidden is not None:
            times.row_bytes.append(batch.hidden.shape[1])
        return output

    Stage.execute = executing  # type: ignore[method-assign]
    return times


def prompts(number: int, length: int, seed: int) -> list[Any]:
    ids = range(length)
    return [
        {"prompt_token_ids": [3 + (seed * 31 + n * 7 + i * 13) % 90 for i in ids]}
        for n in range(number)
    ]


def decode_s(llm: LLM, num_seqs: int, num_tokens: int) -> tuple[float, int]:
    """Returns the seconds of a batch and the tokens that were drawn."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    began_at = time.monotonic()
    outputs = llm.generate(prompts(num_seqs, 16, num_seqs), params, use_tqdm=False)
    elapsed_s = time.monotonic() - began_at
    return elapsed_s, sum(len(one.outputs[0].token_ids) for one in outputs)


def first_token_s(llm: LLM, length: int, seed: int) -> float:
    params = SamplingParams(max_tokens=1, temperature=0)
    began_at = time.monotonic()
    llm.generate(prompts(1, length, seed), params, use_tqdm=False)
    return time.monotonic() - began_at


def measure(args: argparse.Namespace, num_stages: int, times: StageTimes) -> float:
    """Prints the figures of one arrangement; returns the median time to a first token."""
    with LLM(
        args.model,
        device="cpu",
        pipeline_parallel_size=num_stages,
        num_threads=num_stages,
        max_num_seqs=max(args.seqs),
        enable_prefix_caching=False,
    ) as llm:
        decode_s(llm, max(args.seqs), 16)  # measures what steps cost
        for num_seqs in args.seqs:
            rates, shares = [], []
            for _ in range(ROUNDS):
                times.clear()
                elapsed_s, num_tokens = decode_s(llm, num_seqs, args.tokens)
                rates.append(num_tokens / elapsed_s)
                longest_ns = max((stage.forward_ns for stage in times.sums), default=0)
                shares.append(longest_ns / 1e9 / elapsed_s)
            rate = statistics.median(rates)
            line = f"{num_stages} stages, {num_seqs} sequences: {rate:.0f} tokens/s"
            if num_stages > 1:
                line += f", {statistics.median(shares):.2f} of what its stages allow"
            print(line)
        firsts = [first_token_s(llm, args.prompt, seed) for seed in range(ROUNDS)]
    return statistics.median(firsts)


def boundary_us(row_bytes: int, num_tokens: int) -> float:
    """Returns the median microseconds from one stage's `send` to the other's `take`."""
    with tempfile.TemporaryDirectory() as folder:
        servicer = RankServicer(0, lambda rank: None)
        server = RankServer(servicer, f"unix:{folder}/0", num_streams=1)
        link = NextRank(RankAddress(server.address), rank=1, on_lost=lambda: None)
        values = np.zeros((num_tokens, row_bytes), dtype=np.uint8)
        taken = []
        for command in range(1, 201):
            began_at = time.perf_counter()
            link.send(HiddenStates(command, values, None))
            servicer.incoming.take()
            taken.append(1e6 * (time.perf_counter() - began_at))
        link.close()
        server.close()
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--seqs", type=int, nargs="+", default=[32, 8, 1])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=2048)
    args = parser.parse_args()
    times = watch_stages()
    alone = measure(args, 1, times)
    divided = measure(args, args.stages, times)
    print(
        f"first token of {args.prompt}: {1e3 * alone:.0f} ms alone, {1e3 * divided:.0f} ms in"
        f" {args.stages} stages, {divided / alone:.2f}"
    )
    row_bytes = round(statistics.median(times.row_bytes))
    for num_tokens in (1, 32, 512):
        taken_us = boundary_us(row_bytes, num_tokens)
        print(
            f"a boundary of {num_tokens} tokens: {num_tokens * row_bytes} bytes, {taken_us:.0f} us"
        )


if __name__ == "__main__":
    main()
