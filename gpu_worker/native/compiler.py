"""Compiles a decoder of the Llama family into a native program.

The description is the one that PyTorch's model is built of; the weights come by their names in
Hugging Face's checkpoints.
"""

import numpy as np

from gpu_worker.models.decoder_config import DecoderConfig
from gpu_worker.native.matrices import as_one, side_by_side
from gpu_worker.native.weight_shapes import EMBEDDING, HEAD, NORM, layer_prefix
from gpu_worker.native.weights import Weights
from signalbox_kernels.arena import DTYPES, Arena, Packed
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.native import Isa
from signalbox_kernels.program import Program, ProgramBuilder, ProgramShape
from signalbox_kernels.quantised import Matrix, Quantised
from signalbox_kernels.structs import Epilogue, Format, Row


def compile_decoder(
    config: DecoderConfig,
    weights: Weights,
    *,
    block_size: int,
    max_model_len: int,
    num_threads: int,
    isa: Isa | None = None,
) -> Program:
    """Makes a program of a decoder's weights, which are read and packed one by one."""
    shape = ProgramShape(
        element=DTYPES[weights.dtype],
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        block_size=block_size,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        scale=config.scale,
    )
    builder = ProgramBuilder(shape, Arena(shape.element))
    _Compiler(builder, config, weights).add()
    # [positions, 2, head_size / 2] float32
    rotary = np.stack(config.rope.cos_sin(config.head_size, max_model_len), axis=1)
    return builder.build(rotary, num_threads=num_threads, isa=isa)


class _Rows:
    """A buffer that products read: as elements, as codes for quantised weights, or as both."""

    def __init__(self, builder: ProgramBuilder, width: int) -> None:
        self.elements = builder.buffer(width)
        self.codes = builder.buffer(width, row=Row.CODES)

    def of(self, weight: Matrix) -> int:
        return self.codes if isinstance(weight, Quantised) else self.elements


class _Compiler:
    """Appends a decoder's ops; layers share their buffers."""

    def __init__(self, builder: ProgramBuilder, config: DecoderConfig, weights: Weights) -> None:
        heads = config.num_heads * config.head_size
        both = 2 * config.num_kv_heads * config.head_size
        self._builder, self._config, self._weights = builder, config, weights
        self._residual = builder.buffer(config.hidden_size, row=Row.FLOATS)
        self._normed = _Rows(builder, config.hidden_size)
        self._qkv = builder.buffer(heads + both, row=Row.FLOATS)
        self._query = builder.buffer(heads)
        self._attended = _Rows(builder, heads)
        self._activated = _Rows(builder, config.intermediate_size)

    def add(self) -> None:
        head = self._add_embedding()
        for index in range(self._config.num_layers):
            self._add_attention(index)
            self._add_feed_forward(index)
        of = self._normed.elements if head.format is Format.PLAIN else self._normed.codes
        eps, norm = self._config.rms_norm_eps, self._weights.vector(NORM)
        self._builder.norm(self._residual, of, norm, eps=eps, of_rows=True)
        self._builder.head(of, head)

    def _add_embedding(self) -> Packed:
        """Adds the embedding and returns the packed head; a tied model uses one matrix for both."""
        build = self._builder
        table = self._weights.matrix(EMBEDDING)
        if self._config.tie_embeddings:
            head = build.arena.pack(table)
            build.embed(self._residual, head)
            return head
        if isinstance(table, Quantised):
            build.embed(self._residual, build.arena.pack(table))
        else:
            build.embed_plain(self._residual, table)
        return build.arena.pack(self._weights.matrix(HEAD))

    def _add_attention(self, index: int) -> None:
        build, weights, eps = self._builder, self._weights, self._config.rms_norm_eps
        prefix = f"{layer_prefix(index)}self_attn."
        names = [f"{prefix}{part}_proj" for part in "qkv"]
        parts = [weights.matrix(f"{name}.weight") for name in names]
        matrices, bias = side_by_side(parts, weights.dtype), self._bias(names)
        self._add_norm(f"{layer_prefix(index)}input_layernorm.weight", matrices)
        column = 0
        for matrix in matrices:
            end = column + matrix.shape[0]
            part_of_bias = None if bias is None else bias[column:end]
            source = self._normed.of(matrix)
            build.linear(source, self._qkv, matrix, part_of_bias, Epilogue.STORE, column=column)
            column = end
        norms = None
        if self._config.qk_norm:
            norms = (
                weights.vector(f"{prefix}q_norm.weight"),
                weights.vector(f"{prefix}k_norm.weight"),
            )
        build.rotate(self._qkv, self._query, layer=index, norms=norms, eps=eps)
        windows = self._config.sliding_windows
        window = windows[index] if windows else None
        build.attend(self._query, self._attended.elements, layer=index, window=window)
        self._add_down(self._attended, f"{prefix}o_proj")

    def _add_feed_forward(self, index: int) -> None:
        prefix = f"{layer_prefix(index)}mlp."
        names = [f"{prefix}{part}_proj" for part in ("gate", "up")]
        parts = [self._weights.matrix(f"{name}.weight") for name in names]
        matrix = as_one(parts, self._weights.dtype)
        self._add_norm(f"{layer_prefix(index)}post_attention_layernorm.weight", [matrix])
        source, out = self._normed.of(matrix), self._activated.elements
        self._builder.linear(source, out, matrix, self._bias(names), Epilogue.SWIGLU)
        self._add_down(self._activated, f"{prefix}down_proj")

    def _bias(self, names: list[str]) -> AnyArray | None:
        """Returns the biases of several matrices as one, or None if they have none."""
        parts = [self._weights.vector_if_any(f"{name}.bias") for name in names]
        biases = [part for part in parts if part is not None]
        return np.concatenate(biases) if biases else None

    def _add_norm(self, name: str, readers: list[Matrix]) -> None:
        weight, eps = self._weights.vector(name), self._config.rms_norm_eps
        for out in sorted({self._normed.of(reader) for reader in readers}):
            self._builder.norm(self._residual, out, weight, eps=eps)

    def _add_down(self, rows: _Rows, name: str) -> None:
        """Adds a product whose result is added to the residual."""
        matrix = self._weights.matrix(f"{name}.weight")
        if isinstance(matrix, Quantised):
            self._builder.code(rows.elements, rows.codes)
        bias = self._weights.vector_if_any(f"{name}.bias")
        self._builder.linear(rows.of(matrix), self._residual, matrix, bias, Epilogue.ADD)
