"""Whole workloads: nano-vllm's own, and the same work by transformers' continuous batching.

nano-vllm's: 256 requests at once, prompts and outputs uniform in 100 to 1,024 tokens, a Qwen3-0.6B
shape. The roofline of the run is what its decodes must read: all weights a step, for as many steps
as the longest output has tokens, and K and V of each context once a token.
"""

import gc
import importlib.util
import random
import time

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure
from benchmarks.gpu.models import QWEN3_0_6B, config_of, write_model
from benchmarks.gpu.parts.roofline import COPY
from benchmarks.gpu.steps import kv_bytes, read_weights_bytes
from signalbox.llm import LLM, SamplingParams

_PEER = "transformers, same work"
_THEIR_PAGE = 256  # tokens, unless set by a name that differs between versions
Request = tuple[list[int], int]
"""A prompt, and how many tokens follow it."""


def measure(bench: Bench) -> list[Measure]:
    requests = _requests(bench, num_requests=bench.pick(256, 4))
    num_tokens = sum(length for _, length in requests)
    with _llm(bench, requests) as llm:
        seconds = _generate(llm, requests)
    rate = _bytes_to_read(bench, requests) / seconds / 1e9
    name = f"{len(requests)} requests"
    return [
        Measure(
            name=f"{name}: tokens",
            value=num_tokens / seconds,
            unit="tokens/s",
            note="published on an A800: 10,009 (a Triton nano-vllm), 8,588 (vLLM 0.10.2)",
        ),
        Measure(name=f"{name}: read", value=rate, unit="GB/s", of=COPY, aim=0.75),
    ]


def measure_beside_transformers(bench: Bench) -> list[Measure]:
    """Fewer requests, of one output length: what both can be asked for in a minute."""
    prompts = [prompt for prompt, _ in _requests(bench, num_requests=bench.pick(64, 3))]
    requests = [(prompt, bench.pick(128, 4)) for prompt in prompts]
    num_tokens = sum(length for _, length in requests)
    theirs = _transformers(bench, requests)  # first: ours takes most of the memory that is left
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where there is no card
    with _llm(bench, requests) as llm:
        ours = _generate(llm, requests)
    return [
        Measure(name=_PEER, value=num_tokens / theirs, unit="tokens/s"),
        Measure(
            name="ours, same work", value=num_tokens / ours, unit="tokens/s", of=_PEER, aim=4.0
        ),
    ]


def _requests(bench: Bench, *, num_requests: int) -> list[Request]:
    rng = random.Random(0)
    least, most = bench.pick(100, 3), bench.pick(1024, 20)
    return [
        ([rng.randrange(3, 300) for _ in range(rng.randint(least, most))], rng.randint(least, most))
        for _ in range(num_requests)
    ]


def _llm(bench: Bench, requests: list[Request]) -> LLM:
    return LLM(
        str(write_model(bench, QWEN3_0_6B)),
        load_format="dummy",
        device=bench.device.type,
        max_num_seqs=len(requests),
        max_model_len=bench.pick(4096, 128),
        enable_prefix_caching=False,
        **bench.settings,
    )


def _generate(llm: LLM, requests: list[Request]) -> float:
    """Returns the seconds of the second run; the first warms up. Checks that all came."""
    params = [
        SamplingParams(temperature=0.6, max_tokens=length, ignore_eos=True)
        for _, length in requests
    ]
    prompts = [prompt for prompt, _ in requests]
    llm.generate(prompt_token_ids=prompts[:2], sampling_params=params[:2], use_tqdm=False)
    start = time.perf_counter()
    answers = llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
    seconds = time.perf_counter() - start
    for answer, (_, length) in zip(answers, requests, strict=True):
        if len(answer.outputs[0].token_ids) != length:
            raise RuntimeError(f"{length} tokens were asked for: {answer}")
    return seconds


def _bytes_to_read(bench: Bench, requests: list[Request]) -> int:
    """Returns the least: weights a step, K and V of every context a token."""
    config = config_of(bench, QWEN3_0_6B)
    contexts = sum(length * len(prompt) + length * (length - 1) // 2 for prompt, length in requests)
    num_steps = max(length for _, length in requests)
    return num_steps * read_weights_bytes(config) + contexts * kv_bytes(config)


def _transformers(bench: Bench, requests: list[Request]) -> float:
    """Seconds of `generate_batch`, which is continuous batching over a paged cache."""
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        ContinuousBatchingConfig,
        GenerationConfig,
    )

    config = AutoConfig.from_pretrained(write_model(bench, QWEN3_0_6B))
    with torch.device(bench.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=_their_attention(bench)
        )
    generation = GenerationConfig(max_new_tokens=requests[0][1], do_sample=False, eos_token_id=-1)
    pages = sum(-(-(len(prompt) + length) // _THEIR_PAGE) for prompt, length in requests)
    batching = ContinuousBatchingConfig(
        num_blocks=pages + 1, max_batch_tokens=bench.pick(8192, 256)
    )

    def run(prompts: list[list[int]]) -> float:
        start = time.perf_counter()
        answers = model.generate_batch(
            prompts, generation_config=generation, continuous_batching_config=batching
        )
        seconds = time.perf_counter() - start
        lengths = [len(answer.generated_tokens) for answer in answers.values()]
        if lengths != [requests[0][1]] * len(prompts):
            raise RuntimeError(f"transformers gave other numbers of tokens than asked: {lengths}")
        return seconds

    run([prompt for prompt, _ in requests[:2]])
    return run([prompt for prompt, _ in requests])


def _their_attention(bench: Bench) -> str:
    has_flash = bench.device.type == "cuda" and importlib.util.find_spec("flash_attn") is not None
    return "paged|flash_attention_2" if has_flash else "paged|sdpa"
