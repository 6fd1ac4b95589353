"""What more cores may give: the cost of a barrier here, and a model of a decode step elsewhere.

    python -m benchmarks.more_cores MODEL.gguf [--machines 4:40 8:80 16:150 64:300]

Measures a barrier on one thread, on two and on each core, and how much one thread multiplies. The
rest is arithmetic, for machines of THREADS:GB/S: a step takes the longer of reading and
multiplying, and then its barriers, each of which costs in proportion to the threads. It leaves out
threads that end at different times, and phases that are one tile.
"""

import argparse
import os
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.comparison.bound import Needs, measure_rates, needs_of
from signalbox_kernels.arena import Arena
from signalbox_kernels.program import PANEL, ProgramBuilder, ProgramShape
from signalbox_kernels.structs import AttentionArrays, Element, Epilogue, Row, StepArrays

PHASES = 40
ROUNDS = 20_000
ROWS, DEPTH = 8, 256
CONTEXT = 192
BARRIERS_OF_LAYER = {False: 7, True: 9}
"""Norm, Q K V, attention, output, norm, gate and up, down; in bytes also two that make codes."""
OTHER_BARRIERS = 3
"""Embedding, last norm, output layer."""
OF_ROWS = (
    *("row_tokens", "logits_of_row", "suppressed_end", "suppressed", "argmax", "is_finite"),
    "logits",
)
"""Arrays of a step that are empty where no row has logits."""


def phase_s(num_threads: int) -> float:
    """Returns the least time of a phase that gives each thread a tile of a microsecond.

    A thread whose core is taken leaves its tile to another one, which makes the phase longer.
    """
    shape = ProgramShape(
        element=Element.FLOAT32,
        kv_element=Element.FLOAT32,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=16,
        block_size=16,
        hidden_size=DEPTH,
        vocab_size=1,
        scale=1.0,
    )
    builder = ProgramBuilder(shape, Arena())
    source = builder.buffer(DEPTH)
    out = builder.buffer(PANEL * num_threads, row=Row.FLOATS)
    weight = np.zeros((PANEL * num_threads, DEPTH), dtype=np.float32)
    for _ in range(PHASES):
        builder.linear(source, out, weight, None, Epilogue.STORE)
    program = builder.build(np.zeros((1, 2, 8), dtype=np.float32), num_threads=num_threads)
    tokens = np.arange(ROWS)
    of_rows: dict[str, Any] = dict.fromkeys(OF_ROWS, np.empty(0, dtype=np.int64))
    arrays = StepArrays(
        token_ids=tokens,
        positions=tokens,
        attention=AttentionArrays(
            slots=tokens,
            query_start=np.array([0, ROWS]),
            context_lens=np.array([ROWS]),
            block_tables=np.zeros((1, 1), dtype=np.int32),
        ),
        **of_rows,
    )
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        program.run(arrays)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What all threads together do."""

    read_bytes: float
    """In a second."""
    operations: float
    """In a second."""
    barrier_s: float

    def step_s(self, needs: Needs, num_seqs: int) -> tuple[float, float, float]:
        """Returns the seconds of a decode step in reading, in multiplying and in barriers."""
        read = needs.weight_bytes + num_seqs * CONTEXT * needs.kv_bytes_per_token
        barriers = BARRIERS_OF_LAYER[needs.in_bytes] * needs.num_layers + OTHER_BARRIERS
        multiply_s = 2 * num_seqs * needs.weights / self.operations
        return read / self.read_bytes, multiply_s, barriers * self.barrier_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    machines = ["4:40", "8:80", "16:150", "64:300"]
    parser.add_argument("--machines", nargs="+", metavar="THREADS:GB/S", default=machines)
    args = parser.parse_args()
    most = max(2, len(os.sched_getaffinity(0)))
    phases = {count: phase_s(count) for count in sorted({1, 2, most})}
    for count, seconds in phases.items():
        print(f"{count} threads: {seconds * 1e6:.2f} µs for a phase of a tile each")
    # Each thread takes the line of the word that all decrement from another one.
    barrier_s = (phases[most] - phases[1]) / most
    rates = measure_rates(1)
    print("threads  GB/s  form    clients  read, multiply, barriers in ms  tokens/s")
    for text, in_bytes, num_seqs in product(args.machines, (False, True), (1, 32)):
        num_threads, gb_s = (int(part) for part in text.split(":"))
        machine = Machine(
            read_bytes=gb_s * 1e9,
            operations=num_threads
            * (rates.byte_operations if in_bytes else rates.float_operations),
            barrier_s=num_threads * barrier_s,
        )
        parts = machine.step_s(needs_of(args.model, in_bytes=in_bytes), num_seqs)
        rate = num_seqs / (max(parts[:2]) + parts[2])
        in_ms = " ".join(f"{part * 1e3:9.2f}" for part in parts)
        form = "blocks" if in_bytes else "bf16"
        print(f"{num_threads:7}  {gb_s:4}  {form:6}  {num_seqs:7}  {in_ms}  {rate:8.0f}")


if __name__ == "__main__":
    main()
