"""Adds attention, whose cache has K and V of each head, to the program of a decoder."""

import numpy as np

from signalbox_kernels.op_parameters import CachedLayer, Heads, LayerRotation, QueryKeyNorms
from signalbox_kernels.storage import Matrix
from signalbox_kernels.structs import PANEL, KeysAndValues, Pairs, Row
from signalbox_worker.files.checkpoints.kv_scales import KVScales
from signalbox_worker.models.decoder_config import LayerHeads
from signalbox_worker.runner.native.hidden_states import HiddenStates, Modules
from signalbox_worker.runner.native.kv_places import KVPlaces
from signalbox_worker.runner.native.matrices import joined, rows_of_heads
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.program_parts import rotary_table
from signalbox_worker.runner.native.weight_shapes import (
    ATTENTION_NORM,
    GATED_PARTS,
    SINKS,
    layer_prefix,
)


class AttentionCompiler:
    """Appends attention; layers share their buffers."""

    def __init__(
        self, hidden: HiddenStates, places: KVPlaces, *, kv_scales: KVScales, max_model_len: int
    ) -> None:
        config, build = hidden.config, hidden.builder
        self._hidden, self._config, self._builder = hidden, config, build
        self._weights, self._places, self._kv_scales = hidden.weights, places, kv_scales
        heads = [config.heads_of(index) for index in hidden.weights.stage.indices]
        # What comes last is stored in whole panels, if it is a matrix of its own.
        num_queries = 2 if config.gates_attention else 1
        width = max(
            (num_queries * one.num_heads + 2 * one.num_kv_heads) * one.size for one in heads
        )
        self._qkv = build.buffer(width + PANEL, row=Row.FLOATS)
        self._query = build.buffer(max(one.num_heads * one.size for one in heads))
        sliding, size = config.sliding_rope, config.head_size
        self._sliding_rotary = (
            None if sliding is None else rotary_table(sliding, size, max_model_len)
        )
        scaling = config.query_scaling
        self._query_scales = None if scaling is None else scaling.factors(max_model_len)

    def add(self, index: int, beside: list[Matrix]) -> ProductRows:
        """Adds the attention of a layer; returns the rows that the product with `o_proj` reads.

        Args:
            beside: matrices of the feed-forward that read the same rows.
        """
        config, heads = self._config, self._config.heads_of(index)
        self._add_projections(index, heads, beside)
        self._add_rotation(index, heads)
        attended = self._hidden.rows("attended", heads.num_heads * heads.size)
        self._builder.attend(
            self._query,
            attended.elements,
            self._cached(index, heads),
            window=self._window(index),
            is_causal=not config.is_bidirectional,
            cap=config.attention_soft_cap,
            sinks=self._weights.vector_if_any(f"{layer_prefix(index)}{SINKS}"),
        )
        if config.gates_attention:
            column = (heads.num_heads + 2 * heads.num_kv_heads) * heads.size
            self._builder.multiply(attended.elements, self._qkv, column=column)
        return attended

    def _add_projections(self, index: int, heads: LayerHeads, beside: list[Matrix]) -> None:
        """Adds the products that write Q, K, V and perhaps gates one behind the other."""
        prefix = layer_prefix(index)
        names = [f"{prefix}self_attn.{part}_proj" for part in heads.projections]
        modules = self._hidden.modules(names) if not self._config.gates_attention else None
        matrices, rows, bias = modules or self._gated(prefix, heads)
        self._hidden.add_norm(f"{prefix}{ATTENTION_NORM}", [*matrices, *beside])
        column = 0
        for matrix in matrices:
            end = column + matrix.shape[0]
            part = None if bias is None else bias[column:end]
            self._hidden.add_stored(self._qkv, matrix, part, rows, column=column)
            column = end

    def _gated(self, prefix: str, heads: LayerHeads) -> Modules:
        """Returns the matrices of Q, K and V, and that of gates, which is in one with that of Q."""
        size, names = heads.size, [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        whole, *keys_and_values = (self._weights.matrix(f"{name}.weight") for name in names)
        parts = (range(size), range(size, 2 * size))
        query, gate = (joined(rows_of_heads(whole, heads.num_heads, part)) for part in parts)
        matrices = joined([*query, *keys_and_values, *gate])
        of_query, of_gate = (f"{names[0]}.{part}" for part in GATED_PARTS)
        num_rows = heads.num_heads * size
        rows = {of_query: num_rows, **dict.fromkeys(names[1:], heads.num_kv_heads * size)}
        rows[of_gate] = num_rows
        bias = self._weights.vector_if_any(f"{names[0]}.bias")
        if bias is None:
            return Modules(matrices, rows, None)
        for_query, for_gate = bias.reshape(heads.num_heads, 2, size).swapaxes(0, 1)
        others = [self._weights.vector(f"{name}.bias") for name in names[1:]]
        of_all = [for_query.reshape(-1), *others, for_gate.reshape(-1)]
        return Modules(matrices, rows, np.concatenate(of_all))

    def _add_rotation(self, index: int, heads: LayerHeads) -> None:
        """Adds what turns Q and K, and writes K and V to the cache."""
        self._builder.rotate(
            self._qkv,
            self._query,
            self._cached(index, heads),
            self._rotation(index, heads),
            norms=self._norms(index, heads),
            keys_and_values=self._keys_and_values(heads),
        )

    def _norms(self, index: int, heads: LayerHeads) -> QueryKeyNorms | None:
        """Returns the weights of the norms of each head; adds those of all heads together."""
        config, prefix = self._config, f"{layer_prefix(index)}self_attn."
        if not config.qk_norm:
            return None
        eps = config.rms_norm_eps
        query = self._weights.norm(f"{prefix}q_norm.weight")
        has_keys = "k" in heads.projections
        key = self._weights.norm(f"{prefix}k_norm.weight") if has_keys else query
        if not config.qk_norm_is_whole:
            return QueryKeyNorms(query, key, eps)
        for column, weight in ((0, query), (len(query), key)):
            self._builder.norm_columns(self._qkv, weight, column=column, eps=eps)
        return None

    def _own_heads(self, heads: LayerHeads) -> Heads | None:
        """Returns a layer's heads if they are not those of the program's shape."""
        shape = self._builder.shape
        if (heads.num_kv_heads, heads.size) == (shape.num_kv_heads, shape.head_size):
            return None
        return Heads(heads.num_heads, heads.num_kv_heads, heads.size)

    def _keys_and_values(self, heads: LayerHeads) -> KeysAndValues:
        bits = KeysAndValues.PLAIN if "k" in heads.projections else KeysAndValues.NO_KEYS
        if self._config.norms_values:
            bits |= KeysAndValues.NORMED_VALUES
        return bits if "v" in heads.projections else bits | KeysAndValues.VALUES_OF_KEYS

    def _rotation(self, index: int, heads: LayerHeads) -> LayerRotation:
        config, own, num_rotated = self._config, None, 0
        if index not in config.unrotated_layers:
            own = None if self._window(index) is None else self._sliding_rotary
            sliding = config.sliding_rope
            rope = config.rope if own is None or sliding is None else sliding
            num_rotated = rope.rotated(heads.size)
        return LayerRotation(
            table=own,
            num_rotated=num_rotated,
            pairs=Pairs.NEIGHBOURS if config.rotates_neighbours else Pairs.HALVES,
            query_scales=self._query_scales,
        )

    def _window(self, index: int) -> int | None:
        windows = self._config.sliding_windows
        return windows[index] if windows else None

    def _cached(self, index: int, heads: LayerHeads) -> CachedLayer:
        owner = self._config.kv_layer(index)
        return CachedLayer(
            self._places.first[owner],
            self._own_heads(heads),
            *self._kv_scales[owner],
            group=self._places.group_of[owner],
        )
