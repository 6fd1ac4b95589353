"""Adds the feed-forward of layers, dense or a mixture of experts, to the program of a decoder."""

from functools import cached_property

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.op_parameters import Adapted
from signalbox_kernels.storage import Matrix
from signalbox_kernels.structs import Epilogue, Row
from signalbox_worker.models.gemma4_config import Gemma4Config
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.runner.native.hidden_states import HiddenStates, Modules
from signalbox_worker.runner.native.mixture_compiler import MixtureCompiler
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.program_parts import ACTIVATIONS, RESIDUAL
from signalbox_worker.runner.native.weight_shapes import (
    MIXED_NORMS,
    feed_norm,
    has_experts,
    layer_prefix,
)


class FeedForwardCompiler:
    """Appends feed-forwards; layers share their buffers."""

    def __init__(self, hidden: HiddenStates, *, ends_layer: bool) -> None:
        """Args: ends_layer: adds the factor of a layer's hidden states, too."""
        self._hidden, self._config, self._ends_layer = hidden, hidden.config, ends_layer
        self._builder, self._weights = hidden.builder, hidden.weights

    def first_matrices(self, index: int) -> Modules:
        """Returns the matrices of a dense feed-forward that read hidden states."""
        parts = ("gate", "up")[not self._config.has_gate :]
        return self._hidden.modules([f"{_prefix(index)}{part}_proj" for part in parts])

    def add(self, index: int, beside: Modules | None) -> None:
        """Adds the feed-forward of a layer.

        Args:
            beside: its first matrices, if attention made the rows that they read.
        """
        if has_experts(self._config, index):
            part = self._hidden.part
            self._mixture.add(index, part, adds=part == RESIDUAL)
            self._hidden.add_sum(adds=True)
            return
        first = beside or self.first_matrices(index)
        if beside is None:
            norm = f"{layer_prefix(index)}{feed_norm(self._config)}"
            self._hidden.add_norm(norm, first.matrices)
        activated = self._hidden.rows("activated", self._config.inner_size(index))
        self._add_activated(activated, first)
        scale = self._hidden.layer_scale(index) if self._ends_layer else 1.0
        name = f"{_prefix(index)}down_proj"
        if isinstance(self._config, Gemma4Config) and self._config.experts is not None:
            self._add_beside_mixture(activated, name, index, scale)
            return
        self._hidden.add_down(activated, name, self._config.inner_norms[1], index, scale=scale)

    def _add_activated(self, activated: ProductRows, first: Modules) -> None:
        """Adds the product with gate and up, or two for matrices that are stored apart; without a
        gate that with up."""
        hidden, (matrices, rows, bias) = self._hidden, first
        if len(matrices) == 1:
            has_gate = self._config.has_gate
            adapted = hidden.adapted(hidden.normed, rows, is_interleaved=has_gate)
            epilogue = Epilogue.GATED if has_gate else Epilogue.ACTIVATE
            self._add_function(activated, matrices[0], bias, epilogue, adapted)
            return
        gate, up = matrices
        num = gate.shape[0]
        of_gate, of_up = (None, None) if bias is None else (bias[:num], bias[num:])
        hidden.add_stored(self._gate, gate, of_gate, rows)
        adapted = hidden.adapted(hidden.normed, rows)
        self._add_function(activated, up, of_up, Epilogue.GATE, adapted, gate=self._gate)

    def _add_function(
        self,
        activated: ProductRows,
        matrix: Matrix,
        bias: AnyArray | None,
        epilogue: Epilogue,
        adapted: Adapted | None,
        *,
        gate: int = 0,
    ) -> None:
        self._builder.linear(
            self._hidden.normed.read(matrix),
            activated.elements,
            matrix,
            bias,
            epilogue,
            activation=ACTIVATIONS[self._config.activation],
            gate=gate,
            adapted=adapted,
        )

    def _add_beside_mixture(
        self, activated: ProductRows, name: str, index: int, scale: float
    ) -> None:
        """Adds the end of a feed-forward, and the mixture that reads the same hidden states: each
        has a norm, and so has their sum."""
        prefix, matrix = layer_prefix(index), self._weights.matrix(f"{name}.weight")
        source = activated.read_elements(matrix)
        adapted = self._hidden.adapted(activated, {name: matrix.shape[0]})
        out, epilogue = self._hidden.result, Epilogue.STORE
        self._builder.linear(source, out, matrix, None, epilogue, adapted=adapted)
        of_dense, of_experts = (self._hidden.norm(f"{prefix}{MIXED_NORMS[i]}") for i in (0, 2))
        self._builder.norm(out, self._mixed, of_dense, to_floats=True)
        self._mixture.add(index, out, adds=False)
        self._builder.norm(out, self._mixed, of_experts, sum_scale=1.0)
        norm = self._hidden.norm(f"{prefix}{self._config.inner_norms[1]}")
        self._builder.norm(self._mixed, RESIDUAL, norm, sum_scale=scale)

    @cached_property
    def _mixture(self) -> MixtureCompiler:
        config, norm = self._config, feed_norm(self._config)
        if isinstance(config, Gemma4Config) and config.experts is not None:
            config, norm = config.experts, MIXED_NORMS[1]
        assert isinstance(config, MoeConfig)
        return MixtureCompiler(self._hidden, config, norm)

    @cached_property
    def _mixed(self) -> int:
        """Buffer of what a feed-forward and the mixture beside it compute."""
        return self._builder.buffer(self._config.hidden_size, row=Row.FLOATS)

    @cached_property
    def _gate(self) -> int:
        width = max(self._config.inner_size(index) for index in self._weights.stage.indices)
        return self._builder.buffer(width, row=Row.FLOATS)


def _prefix(index: int) -> str:
    return f"{layer_prefix(index)}mlp."
