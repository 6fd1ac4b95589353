"""Adds recurrent layers, whose states lie in blocks of the cache, to the program of a decoder."""

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.recurrent import Convolution, GatedNorm, Scan, StateLayout
from signalbox_kernels.structs import PANEL, Activation, Row, ScanRule
from signalbox_worker.models.recurrence import Mamba2, Recurrence
from signalbox_worker.runner.native.hidden_states import HiddenStates
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.weight_shapes import ATTENTION_NORM, RECURRENT, layer_prefix


class RecurrentCompiler:
    """Appends recurrent layers; they share their buffers, and each has a part of the states."""

    def __init__(self, hidden: HiddenStates, kept: Recurrence) -> None:
        self._hidden, self._builder, self._weights = hidden, hidden.builder, hidden.weights
        self._kept = kept
        self._layout = StateLayout(self._builder.shape.block_bytes)
        width = 3 * kept.channels
        if isinstance(kept, Mamba2):
            width = kept.inner_columns + kept.channels + kept.num_heads
            self._scanned = self._builder.buffer(kept.inner_columns, row=Row.FLOATS)
        self._inputs = self._builder.buffer(width + PANEL, row=Row.FLOATS)
        self._convolved = self._builder.buffer(kept.channels, row=Row.FLOATS)

    def add(self, index: int) -> ProductRows:
        """Adds a layer but its last product; returns the rows that this reads."""
        prefix = f"{layer_prefix(index)}{RECURRENT}."
        matrices, rows, bias = self._hidden.modules([f"{prefix}in_proj"])
        self._hidden.add_norm(f"{layer_prefix(index)}{ATTENTION_NORM}", matrices)
        self._hidden.add_stored(self._inputs, matrices[0], bias, rows)
        if isinstance(self._kept, Mamba2):
            return self._add_mamba(prefix, self._kept)
        # Factors of the inputs come first, then those of the results, then the inputs.
        size = self._kept.channels
        gates = {"column": 2 * size, "factor": 0, "gate": size}
        self._add_convolution(prefix, **gates, activation=Activation.IDENTITY)
        found = self._hidden.rows("recurrent", size)
        self._builder.code(self._convolved, found.elements)
        return found

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
        self._builder.scan(self._convolved, self._inputs, self._scanned, scan, self._layout)
        norm = GatedNorm(
            weight=self._weights.vector(f"{prefix}norm.weight"),
            num_groups=kept.num_groups,
            eps=kept.norm_eps,
            is_gated_first=True,
        )
        found = self._hidden.rows("recurrent", inner)
        self._builder.gated_norm(self._scanned, self._inputs, found.elements, norm)
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
