"""Attention's tile over all that the compiler leaves open: rows, keys, warps, stages.

Every size is timed for decodes and for prefills of contexts of 512, 8,192 and 32,768, prefills
beside PyTorch's fused attention. The sizes that the kernel chooses by itself are in the table as
"chosen". A size that does not compile, or takes more than the card has, is left out with a note.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure
from benchmarks.gpu.parts.attention import Problem, fused_attention, make_problem, uses_triton
from benchmarks.gpu.parts.probes import use_kernels
from benchmarks.gpu.parts.roofline import COPY

_PREFILL = {"rows": (64, 128), "keys": (32, 64, 128), "num_warps": (4, 8), "num_stages": (3, 5)}
_DECODE = {"rows": (16,), "keys": (32, 64, 128), "num_warps": (4, 8), "num_stages": (3, 5)}
_CHOSEN = "chosen"
_CONTEXTS = (512, 8192, 32768)
_DECODED_TOKENS = 131072
"""Keys of a decode step of any context: 256 sequences of 512 tokens, or 4 of 32,768."""


@torch.inference_mode()
def measure(bench: Bench) -> list[Measure]:
    use_kernels(bench)
    found = []
    for context in _CONTEXTS if not bench.tiny else (64,):
        num_seqs = bench.pick(_DECODED_TOKENS // context, 2)
        problem = make_problem(bench, num_seqs=num_seqs, num_new=1, context=context)
        found += _decode(bench, problem, f"{num_seqs} decodes of context {context}")
        problem = make_problem(bench, num_seqs=1, num_new=context, context=context)
        found += _prefill(bench, problem, f"prefill of {context}")
    return found


def _decode(bench: Bench, problem: Problem, title: str) -> list[Measure]:
    times, failed = _times(bench, problem, _DECODE)
    rates = {name: problem.kv_bytes / seconds / 1e9 for name, seconds in times.items()}
    best = max(rates, key=lambda name: rates[name])
    found = [
        Measure(name=f"{title}: {name}", value=rate, unit="GB/s", of=COPY)
        for name, rate in rates.items()
    ]
    note = "; ".join([best, *failed])
    return [
        *found,
        Measure(
            name=f"{title}: best", value=rates[best], unit="GB/s", of=COPY, aim=0.80, note=note
        ),
    ]


def _prefill(bench: Bench, problem: Problem, title: str) -> list[Measure]:
    times, failed = _times(bench, problem, _PREFILL)
    best = min(times, key=lambda name: times[name])
    fused = fused_attention(bench, problem, f"{title}: fused in PyTorch")
    found = [
        Measure(name=f"{title}: {name}", value=seconds * 1e6, unit="µs", of=fused.name)
        for name, seconds in times.items()
    ]
    return [
        fused,
        *found,
        Measure(
            name=f"{title}: best",
            value=times[best] * 1e6,
            unit="µs",
            of=fused.name,
            aim=1.15,
            is_least=False,
            note="; ".join([best, *failed]),
        ),
    ]


def _times(
    bench: Bench, problem: Problem, sizes: dict[str, tuple[int, ...]]
) -> tuple[dict[str, float], list[str]]:
    """Returns seconds by the words for a tile, and why others have none."""
    times, failed = dict[str, float](), list[str]()
    for name, options in _variants(bench, sizes):
        try:
            times[name] = bench.kernel_seconds(*problem.calls(**options))
        except Exception as error:  # whatever the compiler raises is a result of the sweep
            if name == _CHOSEN:
                raise
            failed.append(f"not {name}: {str(error).strip().partition(chr(10))[0]}")
    return times, failed


def _variants(
    bench: Bench, sizes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    yield _CHOSEN, {}
    if not uses_triton(bench.device):
        return  # tiles are Triton's
    from signalbox_kernels.triton.attention.tiles import Tile

    yield "chosen, shares joined by a launch", {"joins_inside": False}
    tiles = itertools.product(*sizes.values())
    for values in itertools.islice(tiles, bench.pick(1000, 1)):
        named = dict(zip(sizes, values, strict=True))
        words = ", ".join(f"{name} {value}" for name, value in named.items())
        yield words, {"tile": Tile(**named)}
