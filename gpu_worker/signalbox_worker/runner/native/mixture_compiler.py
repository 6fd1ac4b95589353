"""Adds the ops of a mixture of experts to the program of a decoder.

Scores choose the experts of each token; rows are put in the order of experts, computed, and summed
by shares. What tokens choose is known only while a step runs. Experts read and write hidden states,
or a latent of them, which a matrix makes of these and another turns into these.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.op_parameters import Clamped, Experts, Norm, Routing
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import Matrix
from signalbox_kernels.structs import PANEL, Activation, Epilogue, Row, ScoreFunction
from signalbox_worker.config import ModelError
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.runner.native.hidden_states import HiddenStates
from signalbox_worker.runner.native.matrices import joined, kind_of
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.program_parts import ACTIVATIONS, RESIDUAL
from signalbox_worker.runner.native.weight_shapes import (
    CHOICE_BIAS,
    EXPERT_SCALES,
    EXPERTS,
    FROM_LATENT,
    ROUTER,
    ROUTER_BIAS,
    ROUTER_SCALE,
    SHARED_GATE,
    TO_LATENT,
    layer_prefix,
)


class MixtureCompiler:
    """Appends mixtures; layers share their buffers."""

    def __init__(self, hidden: HiddenStates, config: MoeConfig, norm: str) -> None:
        """Args: norm: name, within a layer, of the norm of what mixtures read."""
        self._hidden, self._config, self._norm = hidden, config, norm
        self._builder, self._weights, self._normed = hidden.builder, hidden.weights, hidden.normed
        builder, self._copies = hidden.builder, config.experts_per_token
        self._rows = hidden.normed
        """Rows that experts read."""
        if config.expert_columns is not None:
            self._rows = hidden.rows("latents", config.expert_columns)
        padding = PANEL if self._shared_has_gate else 0
        self._scores = builder.buffer(config.num_experts + padding, row=Row.FLOATS)
        self._gathered: dict[int, int] = {}
        """Buffers of experts' rows, by those that they are gathered of."""
        self._ready = set[int]()
        self._gates: dict[int, int] = {}
        self._activated = hidden.rows("experts", config.expert_size, copies=self._copies)
        self._results = builder.buffer(self._rows.width, row=Row.FLOATS, copies=self._copies)

    def add(self, index: int, dst: int, *, adds: bool) -> None:
        """Adds the feed-forward of a layer.

        Args:
            adds: adds its result to what is in `dst`.
        """
        prefix = f"{layer_prefix(index)}{self._config.block}."
        routers = [self._weights.matrix(f"{prefix}{ROUTER}")]
        if self._shared_has_gate:
            routers.append(self._weights.matrix(f"{prefix}{SHARED_GATE}"))
        of_all = f"{prefix}{self._config.shared_name}"
        shared = self._of_shared(of_all) if self._config.shared_size else []
        names = self._config.names
        expert = f"{prefix}{EXPERTS}"
        first = self._of_expert(expert, 0)
        of_norm = [] if self._config.router_has_norm else routers
        norm = f"{layer_prefix(index)}{self._norm}"
        to_latent = [self._one(f"{prefix}{TO_LATENT}")] if self._has_latents else []
        self._hidden.add_norm(norm, [*of_norm, *shared, *(to_latent or first)])
        self._ready.clear()
        self._add_choice(routers, prefix)
        for matrix in to_latent:
            self._add_latents(matrix, first)
        bias = self._bias(expert, *self._first_names)
        self._add_gated(self._stacks(expert, first), self._activated, bias, copies=self._copies)
        rest = (self._one(f"{expert}.{i}.{names.down}.weight") for i in self._others)
        down = self._same(self._one(f"{expert}.0.{names.down}.weight"), rest)
        source = self._activated.read_elements(down.first)
        bias = self._bias(expert, names.down)
        self._builder.linear(source, self._results, down, bias, Epilogue.STORE)
        if self._shared_has_gate:
            self._add_shared(of_all, shared, self._common, Epilogue.STORE)
        self._add_sum(prefix, dst, adds=adds)
        if shared and not self._shared_has_gate:
            self._add_shared(of_all, shared, dst, Epilogue.ADD)

    @property
    def _has_latents(self) -> bool:
        return self._config.expert_columns is not None

    @property
    def _first_names(self) -> tuple[str, ...]:
        """Names of the matrices of an expert that read its rows."""
        return self._config.names[not self._config.has_gate : 2]

    @property
    def _shared_has_gate(self) -> bool:
        return bool(self._config.shared_size) and self._config.shared_has_gate

    def _add_latents(self, matrix: Matrix, readers: list[Matrix]) -> None:
        """Adds the product that makes what experts read."""
        rows, build = self._rows, self._builder
        src, out = self._normed.read(matrix), rows.elements
        function, epilogue = Activation.IDENTITY, Epilogue.ACTIVATE
        build.linear(src, out, matrix, None, epilogue, activation=function)
        for out, rounding in rows.begin(readers):
            if out != rows.elements:
                build.code(rows.elements, out, rounding=rounding)

    def _add_sum(self, prefix: str, dst: int, *, adds: bool) -> None:
        """Adds the sum of the experts' results, and the product that makes hidden states of it."""
        build = self._builder
        if not self._has_latents:
            common = self._common if self._shared_has_gate else None
            build.mix(self._results, dst, adds=adds, common=common)
            return
        build.mix(self._results, self._summed, adds=False)
        matrix = self._one(f"{prefix}{FROM_LATENT}")
        rows = self._hidden.rows("summed", self._rows.width)
        for out, rounding in rows.begin([matrix]):
            build.code(self._summed, out, rounding=rounding)
        epilogue = Epilogue.ADD if adds else Epilogue.STORE
        build.linear(rows.read(matrix), dst, matrix, None, epilogue)

    def _add_choice(self, routers: list[Matrix], prefix: str) -> None:
        config, choice, column = self._config, self._config.choice, 0
        bias = self._weights.vector_if_any(f"{prefix}{ROUTER_BIAS}")
        rows, scales = self._normed, None
        if config.router_has_norm:
            rows = self._hidden.rows("routed", config.hidden_size)
            self._add_router_norm(rows.begin(routers), prefix)
            scales = self._weights.vector(f"{prefix}{EXPERT_SCALES}")
        for router in routers:
            source = rows.read(router)
            self._builder.linear(source, self._scores, router, bias, Epilogue.STORE, column=column)
            column, bias = column + router.shape[0], None
        routing = Routing(
            config.num_experts,
            config.experts_per_token,
            function=ScoreFunction.SIGMOID if choice.by_sigmoid else ScoreFunction.SOFTMAX,
            renormalises=config.renormalise,
            num_groups=choice.num_groups,
            num_chosen_groups=choice.num_chosen_groups,
            num_summed=choice.num_summed,
            has_common=self._shared_has_gate,
            scale=choice.scale,
        )
        bias = None
        if choice.has_bias:
            bias = self._weights.vector(f"{prefix}{CHOICE_BIAS}", is_rounded=False)
        self._builder.route(self._scores, routing, bias, scales)

    def _add_router_norm(self, outs: list[tuple[int, Rounding | None]], prefix: str) -> None:
        config = self._config
        weight = self._weights.vector(f"{prefix}{ROUTER_SCALE}")
        norm = Norm(weight=weight * np.float32(config.hidden_size**-0.5), eps=config.rms_norm_eps)
        for out, rounding in outs:
            self._builder.norm(RESIDUAL, out, norm, rounding=rounding)

    def _add_shared(self, name: str, first: list[Matrix], dst: int, epilogue: Epilogue) -> None:
        activated = self._hidden.rows("shared", self._config.shared_size)
        self._add_gated(first, activated, copies=0)
        down = self._weights.matrix(f"{name}.down_proj.weight")
        source = activated.read_elements(down)
        self._builder.linear(source, dst, down, None, epilogue)

    def _add_gated(
        self,
        matrices: list[Matrix] | list[Experts],
        rows: ProductRows,
        bias: AnyArray | None = None,
        *,
        copies: int,
    ) -> None:
        """Adds the products with gate and up, which are one matrix if they are of one type; without
        a gate that with up."""
        gate, last, limit = 0, matrices[-1], self._config.gate_limit
        if len(matrices) > 1:
            gate = self._gate(rows.width, copies)
            source = self._source(matrices[0])
            of_gate, bias = (None, None) if bias is None else np.split(bias, 2, axis=-1)
            self._builder.linear(source, gate, matrices[0], of_gate, Epilogue.STORE)
        epilogue = Epilogue.GATED if len(matrices) == 1 else Epilogue.GATE
        if not self._config.has_gate:
            epilogue = Epilogue.ACTIVATE
        usual = ACTIVATIONS[self._config.activation]
        self._builder.linear(
            self._source(last),
            rows.elements,
            last,
            bias,
            epilogue,
            activation=usual if limit is None else Clamped(self._config.gate_scale, limit),
            gate=gate,
        )

    def _source(self, matrix: Matrix | Experts) -> int:
        """Returns the buffer that a product reads."""
        if not isinstance(matrix, Experts):
            return self._normed.read(matrix)
        source = self._rows.read(matrix.first)
        if source not in self._gathered:
            row, width = Row(self._builder.buffers[source].row), self._rows.width
            self._gathered[source] = self._builder.buffer(width, row=row, copies=self._copies)
        if source not in self._ready:
            self._ready.add(source)
            self._builder.gather(source, self._gathered[source])
        return self._gathered[source]

    def _stacks(self, expert: str, first: list[Matrix]) -> list[Experts]:
        if len(first) == 1:
            return [self._same(first[0], (self._of_expert(expert, i)[0] for i in self._others))]
        return [
            self._same(matrix, (self._one(f"{expert}.{i}.{name}.weight") for i in self._others))
            for matrix, name in zip(first, self._first_names, strict=True)
        ]

    def _same(self, first: Matrix, others: Iterator[Matrix]) -> Experts:
        """Raises ModelError, while they are read, for experts of several types."""

        def checked() -> Iterator[Matrix]:
            for one in others:
                if kind_of(one) != kind_of(first):
                    raise ModelError(
                        "experts of a layer that are stored in several types are not supported "
                        "natively; use --cpu-backend torch"
                    )
                yield one

        return Experts(first, checked(), self._config.num_experts)

    def _bias(self, expert: str, *names: str) -> AnyArray | None:
        """Returns [num_experts, rows], the biases of matrices one behind the other; None if they
        have none."""
        if not self._config.has_expert_biases:
            return None
        experts = range(self._config.num_experts)
        found = [
            [self._weights.vector_if_any(f"{expert}.{i}.{name}.bias") for name in names]
            for i in experts
        ]
        biases = [[part for part in parts if part is not None] for parts in found]
        return np.array([np.concatenate(parts) for parts in biases]) if biases[0] else None

    @property
    def _others(self) -> range:
        return range(1, self._config.num_experts)

    def _one(self, name: str) -> Matrix:
        return self._weights.matrix(name)

    def _of_expert(self, expert: str, index: int) -> list[Matrix]:
        return joined([self._one(f"{expert}.{index}.{name}.weight") for name in self._first_names])

    def _of_shared(self, prefix: str) -> list[Matrix]:
        parts = ("gate", "up")[not self._config.has_gate :]
        return joined([self._one(f"{prefix}.{part}_proj.weight") for part in parts])

    @cached_property
    def _summed(self) -> int:
        """Buffer of the sums of latents."""
        return self._builder.buffer(self._rows.width, row=Row.FLOATS)

    @cached_property
    def _common(self) -> int:
        return self._builder.buffer(self._config.hidden_size, row=Row.FLOATS)

    def _gate(self, width: int, copies: int) -> int:
        if copies not in self._gates:
            self._gates[copies] = self._builder.buffer(width, row=Row.FLOATS, copies=copies)
        return self._gates[copies]
