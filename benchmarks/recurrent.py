"""The scan and the convolution of recurrent layers on one thread of a CPU.

    python -m benchmarks.recurrent [--key-size 128] [--value-size 128] [--heads 32] [--rounds 20]

Prints microseconds of CPU for a token, least of all rounds: of a scan for each head, of a
convolution for 1,024 channels; of a prompt of 512 tokens, and of a step of 16 sequences with one
token each. States begin in memory, as they do where the layers of a model come in turn.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.arena import Arena
from signalbox_kernels.program import Program, ProgramShape
from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.recurrent import Convolution, Scan, StateLayout
from signalbox_kernels.structs import (
    AttentionArrays,
    Element,
    Row,
    ScanRule,
    StateArrays,
    StepArrays,
)

PAGE_BYTES = 1 << 20
NUM_SEQS, PROMPT = 16, 512
CACHE_BYTES = 256 << 20  # more than a processor's last cache has for a core
SHAPE = ProgramShape(
    element=Element.FLOAT32,
    kv_element=Element.FLOAT32,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_size=16,
    block_size=16,
    hidden_size=32,
    vocab_size=32,
    scale=1.0,
)


def make_program(add: Callable[[ProgramBuilder, StateLayout], None]) -> tuple[Program, int]:
    """Returns a program of one op on a pool, and the pages of a state."""
    builder, layout = ProgramBuilder(SHAPE, Arena()), StateLayout(PAGE_BYTES)
    add(builder, layout)
    program = builder.build(np.zeros((1, 2, 8), dtype=np.float32), num_threads=1)
    pool = np.zeros((NUM_SEQS * layout.num_pages, PAGE_BYTES), dtype=np.uint8)
    pool.fill(1)  # pages of their own
    program.bind(pool)
    return program, layout.num_pages


def make_step(num_seqs: int, length: int, num_pages: int) -> StepArrays:
    """A step of sequences of as many tokens each, whose states stay where they are."""
    count, none = num_seqs * length, np.empty(0)
    states = np.arange(num_seqs * num_pages, dtype=np.int32).reshape(num_seqs, num_pages)
    starts = np.arange(num_seqs + 1) * length
    positions: NDArray[np.int64] = np.arange(count, dtype=np.int64)
    return StepArrays(
        token_ids=positions,
        positions=positions,
        attention=AttentionArrays(
            slots=positions,
            query_start=starts,
            context_lens=np.full(num_seqs, length, dtype=np.int64),
            block_tables=np.zeros((num_seqs, 1), dtype=np.int32),
        ),
        row_tokens=none.astype(np.int64),
        logits_of_row=none.astype(np.int32),
        suppressed_end=none.astype(np.int32),
        suppressed=none.astype(np.int32),
        argmax=none.astype(np.int32),
        is_finite=none.astype(np.uint8),
        logits=none.astype(np.float32),
        states=StateArrays(
            first_runs=np.arange(num_seqs + 1, dtype=np.int32),
            run_start=starts,
            reads=np.full_like(states, -1) if length > 1 else states,
            writes=states,
        ),
    )


def least_us(program: Program, step: StepArrays, rounds: int) -> float:
    """Returns the least CPU time of a step, after which other memory fills the caches."""
    others, times = np.zeros(CACHE_BYTES, dtype=np.uint8), []
    for _ in range(rounds):
        others += 1
        start = time.thread_time()
        program.run(step)
        times.append(time.thread_time() - start)
    return min(times) * 1e6


def make_scan(rule: ScanRule, heads: int, key_size: int, value_size: int) -> Scan:
    keys = heads * key_size
    return Scan(
        rule=rule,
        num_heads=heads,
        num_key_heads=heads,
        key_size=key_size,
        value_size=value_size,
        query=0,
        key=keys,
        value=2 * keys,
        step=0,
        strength=heads,
        rates=np.full(heads, -0.1, dtype=np.float32),
        biases=np.zeros(heads, dtype=np.float32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--key-size", type=int, default=128)
    parser.add_argument("--value-size", type=int, default=128)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    float32 = np.dtype(np.float32)

    def report(name: str, unit: str, width: int, units: float, op: Scan | Convolution) -> None:
        buffers: list[int] = []

        def add(builder: ProgramBuilder, layout: StateLayout) -> None:
            buffers.extend(
                builder.buffer(n, row=Row.FLOATS) for n in (width, 2 * args.heads, width)
            )
            source, gates, out = buffers
            if isinstance(op, Scan):
                builder.scan(source, gates, out, op, layout)
            else:
                builder.convolve(source, out, op, layout)

        program, num_pages = make_program(add)
        view = program.view(buffers[0], width=width, num_tokens=PROMPT, dtype=float32)
        view[:] = rng.standard_normal(view.shape, dtype=np.float32)
        for case, num_seqs, length in (("prompt", 1, PROMPT), ("decode", NUM_SEQS, 1)):
            taken = least_us(program, make_step(num_seqs, length, num_pages), args.rounds)
            print(f"{name:14} {case:8} {taken / num_seqs / length / units:8.3f} us {unit}")

    for rule in ScanRule:
        how = make_scan(rule, args.heads, args.key_size, args.value_size)
        width = args.heads * (2 * args.key_size + args.value_size)
        report(rule.name.lower(), "a head", width, args.heads, how)
    weight = rng.standard_normal((8192, 4), dtype=np.float32)
    report("convolution", "1,024 channels", 8192, 8, Convolution(weight=weight))


if __name__ == "__main__":
    main()
