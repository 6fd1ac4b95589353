"""Adds the ops of inputs that each layer has of its own, as in the small models of Gemma 4.

They are rows of a second table of tokens, plus what a matrix makes of the embedded token. A layer
gates its hidden states by its own, and adds the result to them.
"""

import numpy as np

from signalbox_kernels.floats import to_dtype, to_float32
from signalbox_kernels.op_parameters import Norm
from signalbox_kernels.structs import Epilogue, Row
from signalbox_worker.models.gemma4_config import Gemma4Config
from signalbox_worker.runner.native.hidden_states import HiddenStates
from signalbox_worker.runner.native.program_parts import ACTIVATIONS, RESIDUAL
from signalbox_worker.runner.native.weight_shapes import (
    AFTER_INPUT,
    INPUT_DOWN,
    INPUT_GATE,
    INPUT_NORM,
    INPUT_PROJECTION,
    INPUT_TABLE,
    layer_prefix,
)

_SHARE = np.float32(2**-0.5)
"""Factor of both parts of an input."""


class LayerInputs:
    """Appends the inputs of all layers, which lie beside each other in one buffer."""

    def __init__(self, hidden: HiddenStates, config: Gemma4Config) -> None:
        self._hidden, self._config, self._size = hidden, config, config.layer_input_size
        self._builder, self._weights, self._normed = hidden.builder, hidden.weights, hidden.normed
        width, build = config.num_layers * self._size, hidden.builder
        self._context, self._inputs = (build.buffer(width, row=Row.FLOATS) for _ in range(2))
        self._gated = hidden.rows("inputs", self._size)

    def add(self) -> None:
        """Adds what makes the inputs, behind the embedding.

        The matrix has a factor in the model, which its norm undoes but for epsilon.
        """
        build, config, weights = self._builder, self._config, self._weights
        table = build.arena.pack(weights.matrix(INPUT_TABLE))
        scale = to_float32(to_dtype(np.array([self._size**0.5], np.float32), weights.dtype))
        build.embed(self._inputs, table, scale=float(scale[0] * _SHARE))
        matrix = weights.matrix(INPUT_PROJECTION)
        self._hidden.add_copy([matrix])
        build.linear(self._normed.read(matrix), self._context, matrix, None, Epilogue.STORE)
        build.norm_columns(
            self._context,
            weights.norm(INPUT_NORM) * _SHARE,
            column=0,
            eps=config.rms_norm_eps * config.hidden_size,
            num_runs=config.num_layers,
            added_to=self._inputs,
        )

    def add_to(self, index: int) -> None:
        """Adds a layer's input to its hidden states, whose sum has a factor."""
        build, weights, prefix = self._builder, self._weights, layer_prefix(index)
        result, scale = self._hidden.result, self._hidden.layer_scale(index)
        gate, down = (weights.matrix(f"{prefix}{name}") for name in (INPUT_GATE, INPUT_DOWN))
        self._hidden.add_copy([gate])
        build.linear(
            self._normed.read(gate),
            self._gated.elements,
            gate,
            None,
            Epilogue.MODULATE,
            activation=ACTIVATIONS[self._config.activation],
            gate=self._inputs,
            column=index * self._size,
        )
        build.linear(self._gated.read_elements(down), result, down, None, Epilogue.STORE)
        weight = weights.norm(f"{prefix}{AFTER_INPUT}.weight")
        norm = Norm(weight=weight, eps=self._config.rms_norm_eps)
        build.norm(result, RESIDUAL, norm, sum_scale=scale)
