"""Adds recurrent layers, whose states lie in blocks of the cache, to the program of a decoder."""

from signalbox_kernels.recurrent import Convolution, StateLayout
from signalbox_kernels.structs import Activation, Row
from signalbox_worker.models.recurrence import GatedConvolution
from signalbox_worker.runner.native.hidden_states import HiddenStates
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.weight_shapes import ATTENTION_NORM, RECURRENT, layer_prefix


class RecurrentCompiler:
    """Appends recurrent layers; they share their buffers, and each has a part of the states."""

    def __init__(self, hidden: HiddenStates) -> None:
        self._hidden, self._builder, self._weights = hidden, hidden.builder, hidden.weights
        kept = hidden.config.recurrence
        assert isinstance(kept, GatedConvolution), "of no other family yet"
        self._kept = kept
        self._layout = StateLayout(self._builder.shape.block_bytes)
        self._inputs = self._builder.buffer(3 * kept.channels, row=Row.FLOATS)
        self._convolved = self._builder.buffer(kept.channels, row=Row.FLOATS)

    def add(self, index: int) -> ProductRows:
        """Adds a layer but its last product; returns the rows that this reads."""
        prefix, hidden, kept = layer_prefix(index), self._hidden, self._kept
        matrices, rows, bias = hidden.modules([f"{prefix}{RECURRENT}.in_proj"])
        hidden.add_norm(f"{prefix}{ATTENTION_NORM}", matrices)
        hidden.add_stored(self._inputs, matrices[0], bias, rows)
        # Factors of the inputs come first, then those of the results, then the inputs.
        how = Convolution(
            weight=self._weights.vector(f"{prefix}{RECURRENT}.conv1d.weight"),
            bias=self._weights.vector_if_any(f"{prefix}{RECURRENT}.conv1d.bias"),
            column=2 * kept.channels,
            factor=0,
            gate=kept.channels,
            activation=Activation.IDENTITY,
        )
        self._builder.convolve(self._inputs, self._convolved, how, self._layout)
        found = hidden.rows("recurrent", kept.channels)
        self._builder.code(self._convolved, found.elements)
        return found
