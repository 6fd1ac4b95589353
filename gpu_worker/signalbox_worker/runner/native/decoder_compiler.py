"""Compiles a decoder of the Llama family into a native program.

The description is the one that PyTorch's model is built of; the weights come by their names in
Hugging Face's checkpoints.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from signalbox_kernels.adapters import AdapterSite
from signalbox_kernels.arena import Arena, Packed
from signalbox_kernels.floats import AnyArray, to_dtype, to_float32
from signalbox_kernels.group import Group
from signalbox_kernels.native import best_isa
from signalbox_kernels.program import Program
from signalbox_kernels.program_builder import Adapted, Heads, ProgramBuilder
from signalbox_kernels.storage import Matrix
from signalbox_kernels.structs import PANEL, Epilogue, KeysAndValues, Pairs, Row
from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.files.checkpoints.kv_scales import KVScales
from signalbox_worker.models.decoder_config import LayerHeads
from signalbox_worker.models.gemma4_config import Gemma4Config
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.runner.native.kv_places import KVPlaces, kv_places
from signalbox_worker.runner.native.latent_compiler import LatentCompiler
from signalbox_worker.runner.native.layer_inputs import LayerInputs
from signalbox_worker.runner.native.matrices import joined
from signalbox_worker.runner.native.mixture_compiler import MixtureCompiler
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.program_parts import (
    ACTIVATIONS,
    RESIDUAL,
    program_shape,
    rotary_table,
)
from signalbox_worker.runner.native.weight_shapes import (
    EMBEDDING,
    HEAD,
    LAYER_SCALE,
    MIXED_NORMS,
    NORM,
    SINKS,
    feed_norm,
    has_experts,
    layer_prefix,
)
from signalbox_worker.runner.native.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class KVForm:
    """Form of the KV cache."""

    block_size: int
    dtype: str
    """"float32", "bfloat16", "int8", "fp8", or "auto" for the type of activations."""
    scales: KVScales
    """Scales of K and V in "fp8", for all layers of the model."""


class _GateAndUp(NamedTuple):
    """First matrices of a feed-forward, as few as possible."""

    matrices: list[Matrix]
    rows: dict[str, int]
    """Rows of each, by the name of its module."""
    bias: AnyArray | None


def compile_decoder(
    weights: Weights,
    kv: KVForm,
    *,
    arena: Arena,
    max_model_len: int,
    num_threads: int,
    factors: Row,
    max_lora_rank: int,
    group: Group | None,
) -> Program:
    """Makes a program of a decoder's weights, which are read and packed one by one.

    Without instructions for bfloat16, a program of that dtype stores its weights so and computes in
    float32.

    Args:
        arena: what packs them.
        factors: rows that blocks are multiplied with: codes, wide ones, or elements.
        max_lora_rank: largest r of an adapter that will be set; 0 takes none.
        group: tensor-parallel ranks, of one of which the weights are; None is one rank.
    """
    isa, config = best_isa(), weights.share.config
    places = kv_places(config, weights.stage)
    shape = program_shape(
        config,
        weights.dtype,
        isa=isa,
        block_size=kv.block_size,
        num_layers=places.num_layers,
        kv_dtype=kv.dtype,
    )
    shape = replace(shape, num_kv_heads=places.num_kv_heads, head_size=places.head_size)
    builder = ProgramBuilder(shape, arena)
    compiler = _Compiler(
        builder,
        weights,
        places,
        factors=factors,
        kv_scales=kv.scales,
        max_model_len=max_model_len,
        max_lora_rank=max_lora_rank,
        is_divided=group is not None,
    )
    compiler.add()
    rotary = rotary_table(config.rope, config.rope_head_size, max_model_len)
    return builder.build(rotary, num_threads=num_threads, isa=isa, group=group)


class _Compiler:
    """Appends a decoder's ops; layers share their buffers."""

    def __init__(
        self,
        builder: ProgramBuilder,
        weights: Weights,
        places: KVPlaces,
        *,
        factors: Row,
        kv_scales: KVScales,
        max_model_len: int,
        max_lora_rank: int,
        is_divided: bool,
    ) -> None:
        config = weights.share.config
        heads = [config.heads_of(index) for index in weights.stage.indices]
        self._places = places
        self._builder, self._config, self._weights = builder, config, weights
        self._stage, self._factors = weights.stage, factors
        self._kv_scales = kv_scales
        self._residual = builder.buffer(config.hidden_size, row=Row.FLOATS)
        assert self._residual == RESIDUAL
        self._first_token = weights.share.tokens.start
        self._shared = builder.buffer(config.hidden_size, row=Row.SHARED) if is_divided else None
        self._normed = ProductRows(builder, config.hidden_size, factors=factors)
        if config.latents is None:
            # What comes last is stored in whole panels, if it is a matrix of its own.
            width = max((one.num_heads + 2 * one.num_kv_heads) * one.size for one in heads)
            self._qkv = builder.buffer(width + PANEL, row=Row.FLOATS)
            self._query = builder.buffer(max(one.num_heads * one.size for one in heads))
        self._rows: dict[tuple[str, int], ProductRows] = {}
        sliding, size = config.sliding_rope, config.head_size
        self._sliding_rotary = (
            None if sliding is None else rotary_table(sliding, size, max_model_len)
        )
        scaling = config.query_scaling
        self._query_scales = None if scaling is None else scaling.factors(max_model_len)
        # Of Q, K and V together, each padded to an even r.
        self._shrunk = builder.buffer(3 * (max_lora_rank + 1)) if max_lora_rank else None
        self._inputs = None
        if isinstance(config, Gemma4Config) and config.layer_input_size:
            self._inputs = LayerInputs(builder, config, weights, self._add_copy, factors=factors)

    def add(self) -> None:
        head = self._add_ends()
        for index in self._stage.indices:
            beside = self._gate_and_up(index) if self._config.is_parallel else None
            if self._config.latents is None:
                self._add_attention(index, [] if beside is None else beside.matrices)
            else:
                self._add_latent_attention(index)
            if has_experts(self._config, index):
                self._add_mixture(index)
            else:
                self._add_feed_forward(index, beside)
            if self._inputs is not None:
                self._inputs.add_to(index, self._normed, self._result, self._layer_scale(index))
        if head is not None:
            packed, matrix = head
            norm = self._norm(NORM, divisor=self._config.logit_divisor)
            [(source, rounding)] = self._normed.begin([matrix])
            norm(self._residual, source, of_rows=True, rounding=rounding)
            cap = self._config.logit_soft_cap
            self._builder.head(source, packed, first_token=self._first_token, cap=cap)

    def _add_ends(self) -> tuple[Packed, Matrix] | None:
        """Adds the embedding, if the stage has it; returns the head, packed and as it is stored, if
        it has that.

        A tied model uses one matrix for both.
        """
        build, is_tied, packed = self._builder, self._config.tie_embeddings, None
        if self._stage.is_first:
            table = self._weights.matrix(EMBEDDING)
            packed = build.arena.pack(table)
            out = self._residual if self._shared is None else self._shared
            scale = self._embedding_scale
            build.embed(out, packed, first_token=self._first_token, scale=scale)
            if self._shared is not None:
                build.sum(self._shared, self._residual, adds=False)
            if self._inputs is not None:
                self._inputs.add(self._normed)
        if not self._stage.is_last or not self._config.has_head:
            return None
        if is_tied and packed is not None:
            return packed, table
        head = self._weights.matrix(EMBEDDING if is_tied else HEAD)
        return build.arena.pack(head), head

    @property
    def _embedding_scale(self) -> float:
        scale = np.array([self._config.embedding_scale], dtype=np.float32)
        if self._config.rounds_embedding_scale:
            scale = to_float32(to_dtype(scale, self._weights.dtype))
        return float(scale[0])

    @cached_property
    def _latents(self) -> LatentCompiler:
        config = self._config
        assert config.latents is not None
        return LatentCompiler(
            self._builder,
            config,
            config.latents,
            self._weights,
            self._normed,
            lambda index, readers: self._add_norm(_attention_norm(index), readers),
            factors=self._factors,
        )

    def _add_latent_attention(self, index: int) -> None:
        attended = self._latents.add(index, cached=self._places.first[index])
        name = f"{layer_prefix(index)}self_attn.o_proj"
        self._add_down(attended, name, self._config.inner_norms[0], index)

    def _add_attention(self, index: int, beside: list[Matrix]) -> None:
        """Adds attention.

        Args:
            beside: matrices of the feed-forward that read the same rows.
        """
        build, weights, eps = self._builder, self._weights, self._config.rms_norm_eps
        prefix = f"{layer_prefix(index)}self_attn."
        heads = self._config.heads_of(index)
        names = [f"{prefix}{part}_proj" for part in heads.projections]
        parts = [weights.matrix(f"{name}.weight") for name in names]
        matrices, bias = joined(parts), self._bias(names)
        self._add_norm(_attention_norm(index), [*matrices, *beside])
        rows = dict(zip(names, (part.shape[0] for part in parts), strict=True))
        column = 0
        for matrix in matrices:
            end = column + matrix.shape[0]
            part_of_bias = None if bias is None else bias[column:end]
            source = self._normed.read(matrix)
            adapted = self._adapted(self._normed, _taken(rows, matrix.shape[0]))
            build.linear(
                source,
                self._qkv,
                matrix,
                part_of_bias,
                Epilogue.STORE,
                column=column,
                adapted=adapted,
            )
            column = end
        norms = None
        if self._config.qk_norm:
            query = weights.norm(f"{prefix}q_norm.weight")
            has_keys = "k" in heads.projections
            norms = (query, weights.norm(f"{prefix}k_norm.weight") if has_keys else query)
        if norms is not None and self._config.qk_norm_is_whole:
            for column, weight in zip((0, len(norms[0])), norms, strict=True):
                build.norm_columns(self._qkv, weight, column=column, eps=eps)
            norms = None
        owner = self._config.kv_layer(index)
        cached, scales = self._places.first[owner], self._kv_scales[owner]
        own = None
        if (heads.num_kv_heads, heads.size) != (build.shape.num_kv_heads, build.shape.head_size):
            own = Heads(heads.num_heads, heads.num_kv_heads, heads.size)
        windows = self._config.sliding_windows
        window = windows[index] if windows else None
        rotary, num_rotated = self._rotation(index, window)
        build.rotate(
            self._qkv,
            self._query,
            layer=cached,
            norms=norms,
            eps=eps,
            kv_scales=scales,
            rotary=rotary,
            num_rotated=num_rotated,
            pairs=Pairs.NEIGHBOURS if self._config.rotates_neighbours else Pairs.HALVES,
            heads=own,
            keys_and_values=self._keys_and_values(heads),
            query_scales=self._query_scales,
        )
        attended = self._product_rows("attended", heads.num_heads * heads.size)
        build.attend(
            self._query,
            attended.elements,
            layer=cached,
            window=window,
            is_causal=not self._config.is_bidirectional,
            cap=self._config.attention_soft_cap,
            kv_scales=scales,
            sinks=weights.vector_if_any(f"{layer_prefix(index)}{SINKS}"),
            heads=own,
        )
        self._add_down(attended, f"{prefix}o_proj", self._config.inner_norms[0], index)

    def _keys_and_values(self, heads: LayerHeads) -> KeysAndValues:
        bits = KeysAndValues.PLAIN if "k" in heads.projections else KeysAndValues.NO_KEYS
        if self._config.norms_values:
            bits |= KeysAndValues.NORMED_VALUES
        return bits if "v" in heads.projections else bits | KeysAndValues.VALUES_OF_KEYS

    def _rotation(self, index: int, window: int | None) -> tuple[FloatArray | None, int]:
        """Returns the table of a layer's own, if it has one, and how much of each head it turns."""
        config, own = self._config, None if window is None else self._sliding_rotary
        if index in config.unrotated_layers:
            return None, 0
        rope = config.rope if own is None or config.sliding_rope is None else config.sliding_rope
        return own, rope.rotated(config.heads_of(index).size)

    def _product_rows(self, kind: str, width: int) -> ProductRows:
        """Returns the rows of a kind that layers of a width share."""
        if (kind, width) not in self._rows:
            rows = ProductRows(self._builder, width, factors=self._factors)
            self._rows[kind, width] = rows
        return self._rows[kind, width]

    def _layer_scale(self, index: int) -> float:
        """Returns the factor of the hidden states behind a layer."""
        scale = self._weights.vector_if_any(f"{layer_prefix(index)}{LAYER_SCALE}")
        return 1.0 if scale is None else float(scale[0])

    @cached_property
    def _mixture(self) -> MixtureCompiler:
        config, add_norm = self._config, self._add_feed_norm
        if isinstance(config, Gemma4Config) and config.experts is not None:
            config, add_norm = config.experts, self._add_mixture_norm
        assert isinstance(config, MoeConfig)
        return MixtureCompiler(
            self._builder,
            config,
            self._weights,
            self._normed,
            add_norm,
            factors=self._factors,
        )

    def _add_mixture(self, index: int) -> None:
        is_divided = self._shared is not None
        dst = self._residual if self._shared is None else self._shared
        self._mixture.add(index, dst, adds=not is_divided)
        if self._shared is not None:
            self._builder.sum(self._shared, self._residual, adds=True)

    def _add_mixture_norm(self, index: int, readers: list[Matrix]) -> None:
        self._add_norm(f"{layer_prefix(index)}{MIXED_NORMS[1]}", readers)

    def _add_feed_norm(self, index: int, readers: list[Matrix]) -> None:
        self._add_norm(f"{layer_prefix(index)}{feed_norm(self._config)}", readers)

    def _gate_and_up(self, index: int) -> _GateAndUp:
        names = [f"{layer_prefix(index)}mlp.{part}_proj" for part in ("gate", "up")]
        parts = [self._weights.matrix(f"{name}.weight") for name in names]
        rows = dict(zip(names, (part.shape[0] for part in parts), strict=True))
        return _GateAndUp(joined(parts), rows, self._bias(names))

    def _add_feed_forward(self, index: int, beside: _GateAndUp | None) -> None:
        """Adds a feed-forward.

        Args:
            beside: its first matrices, if attention made the rows that they read.
        """
        prefix = f"{layer_prefix(index)}mlp."
        matrices, rows, bias = beside or self._gate_and_up(index)
        if beside is None:
            self._add_feed_norm(index, matrices)
        activated = self._product_rows("activated", self._config.inner_size(index))
        if len(matrices) == 1:
            adapted = self._adapted(self._normed, rows, is_interleaved=True)
            self._add_gated(activated, matrices[0], bias, Epilogue.GATED, adapted)
        else:
            self._add_gate_and_up(activated, matrices[0], matrices[1], bias, rows)
        scale = self._layer_scale(index) if self._inputs is None else 1.0
        if isinstance(self._config, Gemma4Config) and self._config.experts is not None:
            self._add_beside_mixture(activated, f"{prefix}down_proj", index, scale)
            return
        self._add_down(
            activated, f"{prefix}down_proj", self._config.inner_norms[1], index, scale=scale
        )

    def _add_beside_mixture(
        self, activated: ProductRows, name: str, index: int, scale: float
    ) -> None:
        """Adds the end of a feed-forward, and the mixture that reads the same hidden states: each
        has a norm, and so has their sum."""
        prefix, matrix = layer_prefix(index), self._weights.matrix(f"{name}.weight")
        source = activated.read_elements(matrix)
        adapted = self._adapted(activated, {name: matrix.shape[0]})
        out, epilogue = self._result, Epilogue.STORE
        self._builder.linear(source, out, matrix, None, epilogue, adapted=adapted)
        of_dense, of_experts = (self._norm(f"{prefix}{MIXED_NORMS[i]}") for i in (0, 2))
        of_dense(out, self._mixed, to_floats=True)
        self._mixture.add(index, out, adds=False)
        of_experts(out, self._mixed, to_sum=True)
        norm = self._norm(f"{prefix}{self._config.inner_norms[1]}")
        norm(self._mixed, self._residual, to_sum=True, scale=scale)

    @cached_property
    def _mixed(self) -> int:
        """Buffer of what a feed-forward and the mixture beside it compute."""
        return self._builder.buffer(self._config.hidden_size, row=Row.FLOATS)

    def _add_gate_and_up(
        self,
        activated: ProductRows,
        gate: Matrix,
        up: Matrix,
        bias: AnyArray | None,
        rows: dict[str, int],
    ) -> None:
        """Adds two products for matrices that are stored apart."""
        num = gate.shape[0]
        of_gate, of_up = (None, None) if bias is None else (bias[:num], bias[num:])
        source = self._normed.read(gate)
        adapted = self._adapted(self._normed, _taken(rows, num))
        self._builder.linear(source, self._gate, gate, of_gate, Epilogue.STORE, adapted=adapted)
        adapted = self._adapted(self._normed, rows)
        self._add_gated(activated, up, of_up, Epilogue.GATE, adapted, gate=self._gate)

    def _add_gated(
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
            self._normed.read(matrix),
            activated.elements,
            matrix,
            bias,
            epilogue,
            activation=ACTIVATIONS[self._config.activation],
            gate=gate,
            adapted=adapted,
        )

    @cached_property
    def _gate(self) -> int:
        width = max(self._config.inner_size(index) for index in self._stage.indices)
        return self._builder.buffer(width, row=Row.FLOATS)

    @cached_property
    def _result(self) -> int:
        """Buffer of what attention or feed-forward adds to the residual, before its norm."""
        return self._builder.buffer(self._config.hidden_size, row=Row.FLOATS)

    def _bias(self, names: list[str]) -> AnyArray | None:
        """Returns the biases of several matrices as one, or None if they have none."""
        parts = [self._weights.vector_if_any(f"{name}.bias") for name in names]
        biases = [part for part in parts if part is not None]
        return np.concatenate(biases) if biases else None

    def _add_norm(self, name: str, readers: list[Matrix]) -> None:
        """Adds rows for products with some matrices: normed, or as they are if layers norm none."""
        norm = self._norm(name) if self._config.has_input_norms else self._builder.code
        outs = self._normed.begin(readers)
        for out, rounding in outs:
            norm(self._residual, out, rounding=rounding)
        elements = self._normed.elements
        if self._shrunk is not None and all(out != elements for out, _ in outs):
            norm(self._residual, elements, for_adapters=True)

    def _add_copy(self, readers: list[Matrix]) -> None:
        """Writes the residual as it is for products with some matrices."""
        ones = np.ones(self._config.hidden_size, dtype=np.float32)
        for out, rounding in self._normed.begin(readers):
            build = self._builder
            build.norm(self._residual, out, ones, eps=0.0, is_normed=False, rounding=rounding)

    def _norm(self, name: str, *, divisor: float = 1.0) -> Callable[..., None]:
        """Returns `ProgramBuilder.norm` with the weights of a norm, whose result is divided."""
        bias = self._weights.vector_if_any(f"{name}.bias")
        return partial(
            self._builder.norm,
            weight=self._weights.norm(f"{name}.weight") / np.float32(divisor),
            bias=None if bias is None else bias / np.float32(divisor),
            eps=self._config.rms_norm_eps,
            is_centred=self._config.norm_is_centred,
        )

    def _add_down(
        self, rows: ProductRows, name: str, inner_norm: str, index: int, *, scale: float = 1.0
    ) -> None:
        """Adds a product whose result, summed over the group and perhaps normed, is added to the
        residual.

        Args:
            scale: factor of the sum behind a norm.
        """
        matrix = self._weights.matrix(f"{name}.weight")
        source = rows.read_elements(matrix)
        bias = self._weights.vector_if_any(f"{name}.bias")
        adapted = self._adapted(rows, {name: matrix.shape[0]})
        is_normed = self._config.has_inner_norms
        out = self._result if is_normed else self._residual
        dst = out if self._shared is None else self._shared
        epilogue = Epilogue.ADD if dst == self._residual else Epilogue.STORE
        self._builder.linear(source, dst, matrix, bias, epilogue, adapted=adapted)
        if self._shared is not None:
            self._builder.sum(self._shared, out, adds=not is_normed)
        if is_normed:
            norm = self._norm(f"{layer_prefix(index)}{inner_norm}")
            norm(out, self._residual, to_sum=True, scale=scale)

    def _adapted(
        self, rows: ProductRows, num_rows: dict[str, int], *, is_interleaved: bool = False
    ) -> Adapted | None:
        """Returns what adapters may add to a product; None if none will be set.

        Args:
            num_rows: rows of each matrix that is multiplied, by the name of its module.
        """
        if self._shrunk is None:
            return None
        site = AdapterSite(tuple(num_rows), tuple(num_rows.values()), rows.width, is_interleaved)
        return Adapted(site, rows.elements, self._shrunk)


def _attention_norm(index: int) -> str:
    return f"{layer_prefix(index)}input_layernorm"


def _taken(rows: dict[str, int], num_rows: int) -> dict[str, int]:
    """Takes the first matrices, which have `num_rows` rows together, out of `rows`."""
    taken = dict[str, int]()
    while sum(taken.values()) < num_rows:
        name = next(iter(rows))
        taken[name] = rows.pop(name)
    return taken
