"""Adds attention to latents to the program of a decoder.

The cache has one vector a token: the rotated part of K, and the latent that the rest of K and V of
all heads are products of. These products are not computed for cached tokens. A query is multiplied
with the matrix of its head's K instead, so that it scores latents, and what attention gathers of
them with that of its head's V (DeepSeek-V2, 2024). A prompt is computed so too: each row has the
same bits however it is cut.
"""

import numpy as np

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.op_parameters import CachedLayer, HeadMatrices, LayerRotation, Norm
from signalbox_kernels.storage import Matrix
from signalbox_kernels.structs import Activation, Epilogue, Pairs, Row
from signalbox_worker.models.decoder_config import LatentSizes
from signalbox_worker.runner.native.hidden_states import HiddenStates
from signalbox_worker.runner.native.kv_places import KVPlaces
from signalbox_worker.runner.native.matrices import joined, rows_of_heads, transposed
from signalbox_worker.runner.native.product_rows import ProductRows
from signalbox_worker.runner.native.weight_shapes import ATTENTION_NORM, layer_prefix

_EPS = 1e-6
"""Epsilon of the norms of latents, which no config.json says."""


class LatentCompiler:
    """Appends attention; layers share their buffers."""

    def __init__(self, hidden: HiddenStates, sizes: LatentSizes, places: KVPlaces) -> None:
        self._hidden, self._sizes, self._places = hidden, sizes, places
        self._builder, self._weights, self._normed = hidden.builder, hidden.weights, hidden.normed
        builder, config = hidden.builder, hidden.config
        self._config, num_heads = config, config.num_heads
        self._queries = num_heads * config.head_size
        """Columns of Q in `_heads`, before those of K; each head has the rotated part first."""
        self._heads = builder.buffer(self._queries + config.head_size, row=Row.FLOATS)
        self._rotated = builder.buffer(self._queries)
        self._unrotated = builder.buffer(num_heads * sizes.unrotated)
        self._gathered = builder.buffer(num_heads * sizes.size)
        self._attended = hidden.rows("attended", num_heads * sizes.value)
        if sizes.query_rank is not None:
            self._small_floats = builder.buffer(sizes.query_rank, row=Row.FLOATS)
            self._small = hidden.rows("queries", sizes.query_rank)

    def add(self, index: int, beside: list[Matrix]) -> ProductRows:
        """Does what `AttentionCompiler.add` does."""
        build, sizes, size = self._builder, self._sizes, self._config.head_size
        prefix = f"{layer_prefix(index)}self_attn."
        keys, values = self._parts(f"{prefix}kv_b_proj.weight")
        self._add_products(index, prefix, beside)
        absorbed = HeadMatrices(keys, sizes.unrotated, size)
        self._store(self._unrotated, absorbed, column=sizes.rotated)
        weight = self._weights.norm(f"{prefix}kv_a_layernorm.weight")
        build.norm_columns(self._heads, weight, column=self._queries + sizes.rotated, eps=_EPS)
        cached = CachedLayer(self._places.first[index])
        pairs = Pairs.NEIGHBOURS if self._config.rotates_neighbours else Pairs.HALVES
        rotation = LayerRotation(num_rotated=sizes.rotated, pairs=pairs)
        build.rotate(self._heads, self._rotated, cached, rotation)
        build.attend(self._rotated, self._gathered, cached)
        expanded = HeadMatrices(values, sizes.size, sizes.value)
        self._make_elements(self._gathered, self._attended.elements, expanded)
        return self._attended

    def _add_products(self, index: int, prefix: str, beside: list[Matrix]) -> None:
        """Adds those with the normed rows, and of queries that are products of a product."""
        sizes, weights, size = self._sizes, self._weights, self._config.head_size
        keys, norm = self._keys(prefix), f"{layer_prefix(index)}{ATTENTION_NORM}"
        bias = weights.vector_if_any(f"{prefix}kv_a_proj_with_mqa.bias")
        if bias is not None:
            bias = self._rotated_first(bias)
        if sizes.query_rank is None:
            rows, (plain, turned) = self._normed, self._query_parts(f"{prefix}q_proj.weight")
            self._hidden.add_norm(norm, [plain, turned[0], *keys, *beside])
        else:
            small = weights.matrix(f"{prefix}q_a_proj.weight")
            self._hidden.add_norm(norm, [small, *keys, *beside])
            small_bias = weights.vector_if_any(f"{prefix}q_a_proj.bias")
            source = self._normed.read(small)
            self._builder.linear(source, self._small_floats, small, small_bias, Epilogue.STORE)
            rows, (plain, turned) = self._small, self._query_parts(f"{prefix}q_b_proj.weight")
            of_queries = Norm(weight=weights.norm(f"{prefix}q_a_layernorm.weight"), eps=_EPS)
            for out, rounding in rows.begin([plain, turned[0]]):
                self._builder.norm(self._small_floats, out, of_queries, rounding=rounding)
        self._make_elements(rows.read(plain), self._unrotated, plain)
        self._store(rows.read(turned[0]), HeadMatrices(turned, 0, size))
        column = self._queries
        for matrix in keys:
            end = column - self._queries + matrix.shape[0]
            part = None if bias is None else bias[column - self._queries : end]
            self._store(self._normed.read(matrix), matrix, part, column=column)
            column += matrix.shape[0]

    def _query_parts(self, name: str) -> tuple[Matrix, list[Matrix]]:
        """Returns the rows of all heads that are not rotated, and those of each that are."""
        sizes, num_heads = self._sizes, self._config.num_heads
        matrix, first = self._weights.matrix(name), sizes.unrotated
        [plain] = joined(rows_of_heads(matrix, num_heads, range(first)))
        return plain, rows_of_heads(matrix, num_heads, range(first, first + sizes.rotated))

    def _keys(self, prefix: str) -> list[Matrix]:
        """Returns what makes a token's vector, the rotated part first."""
        matrix, size = self._weights.matrix(f"{prefix}kv_a_proj_with_mqa.weight"), self._sizes.size
        parts = (range(size, size + self._sizes.rotated), range(size))
        return joined([rows_of_heads(matrix, 1, part)[0] for part in parts])

    def _rotated_first(self, bias: AnyArray) -> AnyArray:
        size = self._sizes.size
        return np.concatenate([bias[size:], bias[:size]])

    def _parts(self, name: str) -> tuple[list[Matrix], list[Matrix]]:
        """Returns what queries of each head are multiplied with, and what makes its V."""
        first, num_heads = self._sizes.unrotated, self._config.num_heads
        matrix = self._weights.floats(name)
        keys = rows_of_heads(matrix, num_heads, range(first))
        values = rows_of_heads(matrix, num_heads, range(first, first + self._sizes.value))
        return [transposed(one) for one in keys], values

    def _store(
        self,
        src: int,
        matrix: Matrix | HeadMatrices,
        bias: AnyArray | None = None,
        *,
        column: int = 0,
    ) -> None:
        self._builder.linear(src, self._heads, matrix, bias, Epilogue.STORE, column=column)

    def _make_elements(self, src: int, dst: int, matrix: Matrix | HeadMatrices) -> None:
        activation = Activation.IDENTITY
        self._builder.linear(src, dst, matrix, None, Epilogue.ACTIVATE, activation=activation)
