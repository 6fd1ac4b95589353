"""Recurrent layers of a native program: where their states lie, and the parameters of their ops.

A sequence's state is a list of pages of the pool, in any order. They hold what all recurrent layers
keep: the last inputs of each convolution, and the state of each head. A step reads it in one list
of pages and writes it to another, perhaps the same; it is not copied besides.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

from signalbox_kernels.arena import Arena
from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.op_parameters import rounding_fields
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.structs import (
    UNIT_COLUMNS,
    Activation,
    GatedNormMode,
    SbConvolution,
    SbPlace,
    SbScan,
    ScanRule,
)

_ROW_BYTES = 4 * UNIT_COLUMNS  # of a unit


class StateLayout:
    """Places the parts of a state, in the order in which a program's ops ask for them.

    A part is units of one size: 16 channels of a convolution, or 16 columns of a head's state. Each
    unit lies within a page, so kernels compute in the pages themselves.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._page, self._offset = 0, 0

    @property
    def num_pages(self) -> int:
        """Pages of a state of all parts that were placed."""
        return self._page + (self._offset > 0)

    def place_convolution(self, num_channels: int, width: int) -> SbPlace:
        """Returns where the last inputs of each channel lie. Raises ValueError as `place`."""
        return self.place((width - 1) * _ROW_BYTES, num_channels // UNIT_COLUMNS)

    def place_scan(self, key_size: int, num_columns: int) -> SbPlace:
        """Returns where the columns of all heads lie. Raises ValueError as `place`."""
        return self.place(key_size * _ROW_BYTES, num_columns // UNIT_COLUMNS)

    def place(self, unit_bytes: int, num_units: int) -> SbPlace:
        """Returns where units lie. Raises ValueError if a page holds none."""
        in_page = self._page_bytes // unit_bytes
        if not in_page:
            raise ValueError(
                f"a page of {self._page_bytes} bytes is too small for a state: it holds no unit of "
                f"{unit_bytes} bytes; raise the block size"
            )
        if self._page_bytes - self._offset < unit_bytes:
            self._page, self._offset = self._page + 1, 0
        place = SbPlace(self._page, self._offset, self._page_bytes)
        here = min(num_units, (self._page_bytes - self._offset) // unit_bytes)
        self._offset += here * unit_bytes
        if num_units > here:
            full, rest = divmod(num_units - here - 1, in_page)
            self._page, self._offset = self._page + 1 + full, (rest + 1) * unit_bytes
        return place


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A causal convolution of each channel, SbConvolution of csrc/program/api.h."""

    weight: AnyArray
    """[num_channels, width], of the oldest input first."""
    bias: AnyArray | None = None
    """[num_channels]."""
    column: int = 0
    """First column of the source that has inputs."""
    factor: int | None = None
    """First column of what inputs are multiplied with."""
    gate: int | None = None
    """First column of what results are multiplied with."""
    activation: Activation = Activation.SILU

    def keep(self, arena: Arena, layout: StateLayout) -> int:
        """Keeps the weights, and places the state; returns the address of the struct."""
        num_channels, width = self.weight.shape
        struct = SbConvolution(
            num_channels=num_channels,
            width=width,
            column=self.column,
            factor=-1 if self.factor is None else self.factor,
            gate=-1 if self.gate is None else self.gate,
            activation=self.activation,
            weights=arena.keep(to_float32(self.weight).T),
            bias=arena.keep_floats(self.bias),
            place=layout.place_convolution(num_channels, width),
        )
        return arena.keep_struct(struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A state of each head that every token changes, SbScan of csrc/program/api.h."""

    rule: ScanRule
    num_heads: int
    num_key_heads: int
    heads_in_turn: bool = False
    """True if head i has the query and the key i % num_key_heads, False if neighbours share one."""
    key_size: int
    """Size of queries and keys; in Mamba-2 that of the state, with C as query and B as key."""
    value_size: int
    query: int
    """First columns of the source, as `key` and `value` are."""
    key: int
    value: int
    step: int
    """First column of the gates, as `strength` is; each has one for each head."""
    strength: int = 0
    """First column of beta, which the gated delta rule alone has."""
    step_limits: tuple[float, float] = (0.0, inf)
    rates: AnyArray
    """[num_heads], below 0: A, or -exp(A_log)."""
    biases: AnyArray
    """[num_heads], of time steps."""
    skips: AnyArray | None = None
    """[num_heads], factors of values that are added to results: D."""

    def keep(self, arena: Arena, layout: StateLayout) -> int:
        """Keeps the vectors, and places the state; returns the address of the struct."""
        names = (
            *("rule", "num_heads", "num_key_heads", "heads_in_turn", "key_size", "value_size"),
            *("query", "key", "value", "step", "strength"),
        )
        least, most = self.step_limits
        struct = SbScan(
            **{name: getattr(self, name) for name in names},
            least_step=least,
            most_step=most,
            rates=arena.keep_floats(self.rates),
            biases=arena.keep_floats(self.biases),
            skips=arena.keep_floats(self.skips),
            place=layout.place_scan(self.key_size, self.num_heads * self.value_size),
        )
        return arena.keep_struct(struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedNorm:
    """RMSNorm of groups of columns, and a product with silu of a gate."""

    weight: AnyArray
    """[columns of the source]."""
    num_groups: int
    eps: float
    column: int = 0
    """First column of the gate's buffer, which is one of floats."""
    is_gated_first: bool
    """True multiplies before the norm, False after it."""
    rounding: Rounding | None = None

    @property
    def columns(self) -> dict[str, int]:
        """The fields of an op that say what it reads."""
        size = len(self.weight) // self.num_groups
        return {"column": self.column, "n": size, "num_heads": self.num_groups}

    def fields(self, arena: Arena) -> dict[str, Any]:
        """Keeps the weight; returns the fields of an op."""
        is_first = self.is_gated_first
        return {
            "mode": GatedNormMode.GATED_BEFORE if is_first else GatedNormMode.GATED_AFTER,
            **self.columns,
            "eps": self.eps,
            "weight": arena.keep_floats(self.weight),
            **rounding_fields(self.rounding),
        }
