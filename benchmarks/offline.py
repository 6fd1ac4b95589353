"""Throughput and CPU of `LLM` in one process, for lists of random prompts.

    python -m benchmarks.offline MODEL [--prompts 1 8 32] [--quantization none] ...

CPU-seconds are those of all threads of the process, per generated token, prompts included.
"""

import argparse
import itertools
import time

from benchmarks.harness.closed_loop import Workload
from signalbox.llm.llm import LLM
from signalbox.llm.requests.sampling_params import SamplingParams

VOCAB_SIZE = 32_000
"""Token ids that any model has."""


def measure(llm: LLM, workload: Workload, *, num_prompts: int) -> str:
    """Returns a row of the table."""
    prompts = itertools.islice(workload.prompts(), num_prompts)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    params = SamplingParams(temperature=0, max_tokens=workload.max_tokens, ignore_eos=True)
    start, cpu_start = time.perf_counter(), time.process_time()
    outputs = llm.generate(asked, params, use_tqdm=False)
    elapsed_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert num_tokens == num_prompts * workload.max_tokens
    return f"| {num_prompts} | {num_tokens / elapsed_s:.1f} | {1e3 * cpu_s / num_tokens:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 8, 32], help="at once")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args()
    llm = LLM(options.model, dtype=options.dtype, quantization=options.quantization)
    seeds = itertools.count()
    sizes = {"prompt_tokens": options.prompt_tokens, "max_tokens": options.max_tokens}
    measure(llm, Workload(vocab_size=VOCAB_SIZE, max_tokens=8, seed=next(seeds)), num_prompts=2)
    print("| prompts at once | tokens/s | LLM ms CPU/token |\n|---|---|---|")
    for num_prompts in options.prompts:
        workload = Workload(vocab_size=VOCAB_SIZE, seed=next(seeds), **sizes)
        print(measure(llm, workload, num_prompts=num_prompts), flush=True)


if __name__ == "__main__":
    main()
