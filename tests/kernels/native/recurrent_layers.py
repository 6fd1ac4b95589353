"""Recurrent layers in native programs, whose states lie in pages that the test hands out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.native import Isa
from signalbox_kernels.recurrent import Convolution, Scan, StateLayout
from signalbox_kernels.structs import UNIT_COLUMNS, Activation, Row, ScanRule, StateArrays
from tests.kernels.native.matrices import FLOAT32, make_floats
from tests.kernels.native.programs import make_arrays, make_builder, make_program

How = Convolution | Scan
Pages = NDArray[np.int32]
"""Those of a state."""


def make_scan(
    rule: ScanRule,
    *,
    num_heads: int = 6,
    num_key_heads: int = 3,
    key_size: int = 64,
    value_size: int = 48,
) -> Scan:
    """A scan of [query | key | value] with gates [steps | strengths]."""
    keys, is_selective = num_key_heads * key_size, rule is ScanRule.SELECTIVE
    return Scan(
        rule=rule,
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        key_size=key_size,
        value_size=value_size,
        query=0,
        key=keys,
        value=2 * keys,
        step=0,
        strength=num_heads,
        step_limits=(0.01, 2.0) if is_selective else (0.0, np.inf),
        rates=-np.exp(make_floats(num_heads, seed=1)),
        biases=make_floats(num_heads, seed=2),
        skips=make_floats(num_heads, seed=3) if is_selective else None,
    )


def make_convolution(
    num_channels: int, width: int, *, is_doubly_gated: bool = False
) -> Convolution:
    """One of [inputs], or as LFM2 has it: of [factors | gates | inputs]."""
    return Convolution(
        weight=make_floats(num_channels, width, seed=4),
        bias=None if is_doubly_gated else make_floats(num_channels, seed=5),
        column=2 * num_channels if is_doubly_gated else 0,
        factor=0 if is_doubly_gated else None,
        gate=num_channels if is_doubly_gated else None,
        activation=Activation.IDENTITY if is_doubly_gated else Activation.SILU,
    )


def source_width(how: How) -> int:
    if isinstance(how, Convolution):
        return len(how.weight) * (1 if how.factor is None else 3)
    return 2 * how.num_key_heads * how.key_size + how.num_heads * how.value_size


def result_width(how: How) -> int:
    return len(how.weight) if isinstance(how, Convolution) else how.num_heads * how.value_size


def gates_width(how: How) -> int:
    return 1 if isinstance(how, Convolution) else 2 * how.num_heads


@dataclass
class Rows:
    """Rows of a sequence in a step, the state before them, and that behind each run of them."""

    x: AnyArray
    gates: AnyArray
    reads: Pages | None
    runs: Sequence[tuple[int, Pages | None]]
    """Rows of each run, and where it leaves its state; None leaves none."""


class Layer:
    """A program of one op, and a pool whose pages are NaN until they are written."""

    def __init__(
        self,
        how: How,
        isa: Isa | None = None,
        *,
        page_bytes: int = 1 << 15,
        num_threads: int = 2,
        units_before: int = 0,
    ) -> None:
        """Args: units_before: units of 64 bytes that lie before the op's."""
        self.how = how
        builder = make_builder(FLOAT32)
        self.source = builder.buffer(source_width(how), row=Row.FLOATS)
        self.gates = builder.buffer(gates_width(how), row=Row.FLOATS)
        self.out = builder.buffer(result_width(how), row=Row.FLOATS)
        self.layout = StateLayout(page_bytes)
        if units_before:
            self.layout.place(64, units_before)
        for kept in (self.source, self.gates):
            builder.keep(kept)
        if isinstance(how, Scan):
            builder.scan(self.source, self.gates, self.out, how, self.layout)
        else:
            builder.convolve(self.source, self.out, how, self.layout)
        self.program = make_program(builder, isa, num_threads)
        self.pool = np.full((12 * self.layout.num_pages, page_bytes), 0xFF, dtype=np.uint8)
        self.program.bind(self.pool)
        self._free = np.random.default_rng(7).permutation(len(self.pool)).astype(np.int32)

    def take(self) -> Pages:
        """Returns pages for a state, in no order."""
        pages, self._free = np.split(self._free, [self.layout.num_pages])
        return pages

    def run(self, *seqs: Rows) -> list[AnyArray]:
        """Computes a step; returns the results of each sequence."""
        for buffer, parts in (
            (self.source, [seq.x for seq in seqs]),
            (self.gates, [seq.gates for seq in seqs]),
        ):
            values = np.concatenate(parts)
            size = {"width": values.shape[1], "num_tokens": len(values)}
            view = self.program.view(buffer, **size, dtype=FLOAT32)
            view[:, : values.shape[1]] = values
        count, width = len(values), result_width(self.how)
        self.program.run(replace(make_arrays(count), states=self._arrays(seqs)))
        out = self.program.view(self.out, width=width, num_tokens=count, dtype=FLOAT32)
        return np.split(out[:, :width].copy(), np.cumsum([len(seq.x) for seq in seqs])[:-1])

    def settle(self, kept: Sequence[int], *seqs: Rows) -> None:
        """Leaves states behind rows that the step before has kept, whose values are not read here.

        Args:
            kept: which of those rows they are.
        """
        for buffer in (self.source, self.gates):  # as other layers would
            view = self.program.view(buffer, width=1, num_tokens=len(kept), dtype=FLOAT32)
            view[:] = np.nan
        rows = np.array(kept, dtype=np.int64)
        arrays = make_arrays(len(rows))
        self.program.run(replace(arrays, states=self._arrays(seqs), settled=rows))

    def _arrays(self, seqs: Sequence[Rows]) -> StateArrays:
        runs = [run for seq in seqs for run in seq.runs]
        none = np.full_like(next(pages for _, pages in runs if pages is not None), -1)
        return StateArrays(
            first_runs=np.cumsum([0, *(len(seq.runs) for seq in seqs)], dtype=np.int32),
            run_start=np.cumsum([0, *(length for length, _ in runs)], dtype=np.int64),
            reads=np.stack([none if seq.reads is None else seq.reads for seq in seqs]),
            writes=np.stack([none if pages is None else pages for _, pages in runs]),
        )

    def state(self, pages: Pages) -> NDArray[np.float32]:
        """Returns what the op keeps in a state that has nothing else, [rows of a unit, columns]."""
        how = self.how
        rows = how.weight.shape[1] - 1 if isinstance(how, Convolution) else how.key_size
        width, unit = result_width(how), rows * UNIT_COLUMNS
        floats = self.pool[pages].view(np.float32)
        in_page = floats.shape[1] // unit
        units = floats[:, : in_page * unit].reshape(-1, rows, UNIT_COLUMNS)
        return units[: width // UNIT_COLUMNS].swapaxes(0, 1).reshape(rows, width).copy()


def make_rows(how: How, num_tokens: int, *, seed: int = 0) -> Rows:
    """Rows of a sequence whose states are not named yet."""
    x = make_floats(num_tokens, source_width(how), seed=seed)
    return Rows(x, make_floats(num_tokens, gates_width(how), seed=seed + 1), None, ())


def part(
    rows: Rows, first: int, end: int, reads: Pages | None, *runs: tuple[int, Pages | None]
) -> Rows:
    """Returns neighbouring rows of a sequence as a step of their own."""
    return Rows(rows.x[first:end], rows.gates[first:end], reads, runs)
