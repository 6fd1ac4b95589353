"""Adds recurrent layers, whose states lie in blocks of the cache, to the program of a decoder."""

import numpy as np

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.recurrent import Convolution, GatedNorm, Scan, StateLayout
from signalbox_kernels.structs import PANEL, Activation, Row, ScanRule
from signalbox_worker.models.recurrence import DeltaRule, Mamba2, Recurrence
from signalbox_worker.runner.native.hidden_states import HiddenStates
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.weight_shapes import ATTENTION_NORM, RECURRENT, layer_prefix


class RecurrentCompiler:
    """Appends recurrent layers; they share their buffers, and each has a part of the states."""

    def __init__(self, hidden: HiddenStates, kept: Recurrence) -> None:
        self._hidden, self._builder, self._weights = hidden, hidden.builder, hidden.weights
        self._kept, build = kept, hidden.builder
        self._layout = StateLayout(build.shape.block_bytes)
        # What comes last is stored in whole panels.
        width = sum(self._parts.values()) + PANEL
        self._inputs = build.buffer(width, row=Row.FLOATS)
        self._convolved = build.buffer(kept.channels, row=Row.FLOATS)
        self._scanned = self._convolved
        if kept.matrix_columns:
            self._scanned = build.buffer(kept.matrix_columns, row=Row.FLOATS)
        self._squares: tuple[int, int] | None = None
        """Buffers of a norm that spans ranks, see `gated_norm`."""
        if isinstance(kept, Mamba2) and hidden.weights.share.norms_over_ranks:
            shared = build.buffer(kept.num_groups, row=Row.SHARED)
            self._squares = (shared, build.buffer(kept.num_groups, row=Row.FLOATS))

    @property
    def _parts(self) -> dict[str, int]:
        """Rows of the matrices that read the hidden states, by their names."""
        match kept := self._kept:
            case DeltaRule():
                heads = kept.num_value_heads
                of_rule = {"qkv": kept.channels, "z": kept.value_columns, "a": heads, "b": heads}
                return {f"in_proj_{name}": rows for name, rows in of_rule.items()}
            case Mamba2():
                return {"in_proj": kept.inner_columns + kept.channels + kept.num_heads}
        return {"in_proj": 3 * kept.channels}

    def add(self, index: int) -> ProductRows:
        """Adds a layer but its last product; returns the rows that this reads."""
        prefix = f"{layer_prefix(index)}{RECURRENT}."
        matrices, rows, bias = self._hidden.modules(
            [f"{prefix}{name}" for name in self._parts], in_units=True
        )
        self._hidden.add_norm(f"{layer_prefix(index)}{ATTENTION_NORM}", matrices)
        column = 0
        for matrix in matrices:  # a bias has one matrix
            self._hidden.add_stored(self._inputs, matrix, bias, rows, column=column)
            column += matrix.shape[0]
        self._builder.keep(self._inputs)
        match self._kept:
            case DeltaRule() as rule:
                return self._add_delta_rule(prefix, rule)
            case Mamba2() as mamba:
                return self._add_mamba(prefix, mamba)
        # Factors of the inputs come first, then those of the results, then the inputs.
        size = self._kept.channels
        gates = {"column": 2 * size, "factor": 0, "gate": size}
        self._add_convolution(prefix, **gates, activation=Activation.IDENTITY)
        found = self._hidden.rows("recurrent", size)
        self._builder.code(self._convolved, found.elements)
        return found

    def _add_delta_rule(self, prefix: str, rule: DeltaRule) -> ProductRows:
        """Adds the gated delta rule, whose inputs are Q, K, V, gates, time steps and strengths."""
        self._add_convolution(prefix, column=0)
        step = rule.channels + rule.value_columns
        scan = Scan(
            rule=ScanRule.GATED_DELTA,
            num_heads=rule.num_value_heads,
            num_key_heads=rule.num_key_heads,
            heads_in_turn=rule.heads_in_turn,
            key_size=rule.key_size,
            value_size=rule.value_size,
            query=0,
            key=rule.key_columns,
            value=2 * rule.key_columns,
            step=step,
            strength=step + rule.num_value_heads,
            rates=self._vector(f"{prefix}A"),
            biases=self._vector(f"{prefix}dt_bias"),
        )
        norm = GatedNorm(
            weight=np.tile(self._weights.vector(f"{prefix}norm.weight"), rule.num_value_heads),
            num_groups=rule.num_value_heads,
            eps=rule.norm_eps,
            column=rule.channels,
            is_gated_first=False,
        )
        return self._add_scan(scan, norm)

    def _add_mamba(self, prefix: str, kept: Mamba2) -> ProductRows:
        """Adds Mamba-2, whose inputs are gates, values, B, C and time steps."""
        inner, shared = kept.inner_columns, kept.num_groups * kept.state_size
        self._add_convolution(prefix, column=inner)
        scan = Scan(
            rule=ScanRule.SELECTIVE,
            num_heads=kept.num_heads,
            num_key_heads=kept.num_groups,
            key_size=kept.state_size,
            value_size=kept.head_size,
            query=inner + shared,
            key=inner,
            value=0,
            step=inner + kept.channels,
            rates=self._vector(f"{prefix}A"),
            biases=self._vector(f"{prefix}dt_bias"),
            skips=self._vector(f"{prefix}D"),
        )
        norm = GatedNorm(
            weight=self._weights.vector(f"{prefix}norm.weight"),
            num_groups=kept.num_groups,
            eps=kept.norm_eps,
            is_gated_first=True,
        )
        return self._add_scan(scan, norm)

    def _add_scan(self, scan: Scan, norm: GatedNorm) -> ProductRows:
        self._builder.scan(self._convolved, self._inputs, self._scanned, scan, self._layout)
        found = self._hidden.rows("recurrent", len(norm.weight))
        dst = found.elements
        self._builder.gated_norm(self._scanned, self._inputs, dst, norm, self._squares)
        return found

    def _add_convolution(
        self,
        prefix: str,
        *,
        column: int,
        factor: int | None = None,
        gate: int | None = None,
        activation: Activation = Activation.SILU,
    ) -> None:
        how = Convolution(
            weight=self._weights.vector(f"{prefix}conv1d.weight"),
            bias=self._weights.vector_if_any(f"{prefix}conv1d.bias"),
            column=column,
            factor=factor,
            gate=gate,
            activation=activation,
        )
        self._builder.convolve(self._inputs, self._convolved, how, self._layout)

    def _vector(self, name: str) -> AnyArray:
        """Returns a vector of the scan, which is computed in float32 of any dtype."""
        return self._weights.vector(name, is_rounded=False)
