"""The longest kernels of three steps of a Llama-3-8B shape, as PyTorch's profiler sees them.

A decode of 1, a decode of 256 at context 512, and a prefill of 8,192: where the time of `steps`
goes. What a step takes beyond the sum of its kernels is host, launches and gaps.
"""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure
from benchmarks.gpu.models import LLAMA_3_8B, make_runner
from benchmarks.gpu.steps import blocks_for, make_batch

_NUM_STEPS = 3
_NUM_KERNELS = 20
_NAME_CHARS = 90


def measure(bench: Bench) -> list[Measure]:
    many, context = bench.pick(256, 4), bench.pick(512, 48)
    prompt = bench.pick(8192, 128)
    runner = make_runner(bench, LLAMA_3_8B, num_seqs=many, num_tokens=prompt)
    num_blocks = max(
        blocks_for(num_seqs=many, context=context), blocks_for(num_seqs=1, context=prompt)
    )
    runner.init_cache_engine(num_gpu_blocks=num_blocks, num_cpu_blocks=0)
    found = []
    for title, num_seqs, num_new, length in (
        ("decode of 1", 1, 1, context),
        (f"decode of {many}", many, 1, context),
        (f"prefill of {prompt}", 1, prompt, prompt),
    ):
        batch = make_batch(
            num_seqs=num_seqs,
            num_new=num_new,
            context=length,
            num_blocks=num_blocks,
            vocab_size=runner.model.vocab_size,
        )
        found += _longest(bench, title, lambda batch=batch: runner.execute(batch))
    return found


def _longest(bench: Bench, title: str, step: Callable[[], object]) -> list[Measure]:
    seconds = bench.seconds(step, rounds=5)
    on_device = bench.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]
    with profile(activities=activities) as recorded:
        for _ in range(_NUM_STEPS):
            step()
        bench.synchronize()
    times = [_time(event, on_device=on_device) for event in recorded.key_averages()]
    times = sorted((one for one in times if one[1] > 0), key=lambda one: -one[1])
    total = sum(us for _, us, _ in times)
    found = [
        Measure(name=f"{title}: step", value=seconds * 1e3, unit="ms"),
        Measure(name=f"{title}: all kernels", value=total / 1e3, unit="ms"),
    ]
    return found + [
        Measure(
            name=f"{title}: {rank}. {name.replace('|', ' ')[:_NAME_CHARS]}",
            value=us,
            unit="µs",
            note=f"{us / total:.1%}, {calls:g} calls",
        )
        for rank, (name, us, calls) in enumerate(times[:_NUM_KERNELS], 1)
    ]


def _time(
    event: torch.autograd.profiler_util.FunctionEventAvg, *, on_device: bool
) -> tuple[str, float, float]:
    """Returns the name, microseconds of its own and calls of a step."""
    total = event.self_device_time_total if on_device else event.self_cpu_time_total
    return str(event.key), total / _NUM_STEPS, event.count / _NUM_STEPS
