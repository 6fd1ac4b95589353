"""A step of a Llama-3-8B shape: decode against the bandwidth, prefill against the matrix rate.

A decode must read every weight, and K and V of every context, once; that over the time of a step,
sampling and the way to the host included, is compared with the bandwidth of a copy.
"""

from dataclasses import replace

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure, beside_plain
from benchmarks.gpu.models import LLAMA_3_8B, config_of, make_runner
from benchmarks.gpu.parts.roofline import COPY, MATRICES
from benchmarks.gpu.steps import blocks_for, kv_bytes, make_batch, prefill_flops, read_weights_bytes
from signalbox_worker.runner.local_runner import LocalRunner

_FAST_AIM = 0.80
"""Aim for a decode of 1 where the card copies so fast that what is not reading weighs more."""

_FP8_AIM = 1.6
"""Aim for the tokens/s of a decode of 1, over those with weights of 16 bits."""


def measure(bench: Bench) -> list[Measure]:
    context, prompt = bench.pick(512, 48), bench.pick(8192, 128)
    batches = ((1, 0.85), (bench.pick(256, 4), 0.75))
    runner = make_runner(bench, LLAMA_3_8B, num_seqs=batches[-1][0], num_tokens=prompt)
    num_blocks = max(
        blocks_for(num_seqs=batches[-1][0], context=context), blocks_for(num_seqs=1, context=prompt)
    )
    runner.init_cache_engine(num_gpu_blocks=num_blocks, num_cpu_blocks=0)
    found = []
    for num_seqs, aim in batches:
        found += _decode(bench, runner, num_seqs=num_seqs, context=context, aim=aim)
    return [*found, *_prefill(bench, runner, prompt)]


def measure_beside_plain(bench: Bench) -> list[Measure]:
    """The rates with the part's settings, over those of the part `steps`."""
    label = ", ".join(f"{name} {value}" for name, value in bench.settings.items())
    found = beside_plain(measure(bench), label)
    if bench.settings.get("quantization") == "fp8":  # half the bytes to read
        found[0] = replace(found[0], aim=_FP8_AIM)
    return found


def _decode(
    bench: Bench, runner: LocalRunner, *, num_seqs: int, context: int, aim: float
) -> list[Measure]:
    batch = make_batch(
        num_seqs=num_seqs,
        num_new=1,
        context=context,
        num_blocks=len(runner.pools.gpu_pool),
        vocab_size=runner.model.vocab_size,
    )
    seconds = bench.seconds(lambda: runner.execute(batch))
    config = config_of(bench, LLAMA_3_8B)
    num_bytes = read_weights_bytes(config) + num_seqs * context * kv_bytes(config)
    name = f"decode of {num_seqs}, context {context}"
    return [
        Measure(name=f"{name}: step", value=seconds * 1e3, unit="ms"),
        Measure(name=f"{name}: tokens", value=num_seqs / seconds, unit="tokens/s"),
        Measure(
            name=f"{name}: read",
            value=num_bytes / seconds / 1e9,
            unit="GB/s",
            of=COPY,
            aim=aim,
            aim_if_fast=min(aim, _FAST_AIM),
        ),
    ]


def _prefill(bench: Bench, runner: LocalRunner, num_tokens: int) -> list[Measure]:
    batch = make_batch(
        num_seqs=1,
        num_new=num_tokens,
        context=num_tokens,
        num_blocks=len(runner.pools.gpu_pool),
        vocab_size=runner.model.vocab_size,
    )
    seconds = bench.seconds(lambda: runner.execute(batch), rounds=5)
    rate = prefill_flops(config_of(bench, LLAMA_3_8B), num_tokens) / seconds / 1e12
    name = f"prefill of {num_tokens}"
    return [
        Measure(name=f"{name}: step", value=seconds * 1e3, unit="ms"),
        Measure(name=f"{name}: tokens", value=num_tokens / seconds, unit="tokens/s"),
        Measure(name=f"{name}: rate", value=rate, unit="TFLOP/s", of=MATRICES, aim=0.7),
    ]
