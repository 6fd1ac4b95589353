"""Compiles a decoder into a native program: the same description and weights that Torch would run.

Weights are packed one by one and given up as they go, so that a model is never in memory twice.
"""

import logging

import numpy as np
import torch
from torch import Tensor

from gpu_worker.checkpoints.quantization import Quantization
from gpu_worker.config import DeviceConfig
from gpu_worker.executors.native_matrices import Matrices
from gpu_worker.layers import ParallelGroup, Placement, RowParallelLinear
from gpu_worker.models.decoder_config import DecoderConfig
from gpu_worker.models.llama import Decoder, DecoderLayer, FeedForward
from gpu_worker.models.registry import Model
from signalbox_kernels.arena import DTYPES, Arena, Packed
from signalbox_kernels.native import Isa, NativeUnavailable, best_isa
from signalbox_kernels.program import Program, ProgramBuilder, ProgramShape
from signalbox_kernels.quantised import Matrix, Quantised
from signalbox_kernels.structs import Epilogue, Format, Row

logger = logging.getLogger(__name__)

_GRAIN = 16  # tokens and head elements come in vectors of so many


def why_not_natively(
    model: Model,
    device_config: DeviceConfig,
    *,
    placement: Placement,
    group: ParallelGroup,
    block_size: int,
) -> str | None:
    """Says what keeps a model from running natively; None if it can, and is to.

    Raises ValueError if it must, or if SIGNALBOX_ISA names no instruction set.
    """
    wanted = device_config.cpu_backend
    if wanted == "torch":
        return "cpu_backend is 'torch'"
    reason = _why_no_program(model, placement=placement, group=group, block_size=block_size)
    if device_config.attention_backend != "auto":
        reason = f"attention_backend is {device_config.attention_backend!r}"
    reason = reason or _why_no_library(warn=wanted == "auto")
    if reason is not None and wanted == "native":
        raise ValueError(f"cpu_backend is 'native', but {reason}; use 'auto' or 'torch'")
    return reason


def _why_no_library(*, warn: bool) -> str | None:
    try:
        best_isa()
    except NativeUnavailable as error:
        if warn:
            logger.warning("no native CPU kernels: %s; PyTorch computes, more slowly", error)
        return str(error)
    return None


def _why_no_program(
    model: object, *, placement: Placement, group: ParallelGroup, block_size: int
) -> str | None:
    """Says what the native path lacks for this model; None if it can run it."""
    if placement.device.type != "cpu":
        return f"it runs on a CPU, not on {placement.device.type}"
    if type(model) is not Decoder:  # a family that extends it has parts that no op is for
        return f"it has no program for {type(model).__name__}"
    if placement.dtype not in DTYPES:
        return f"it computes in float32 and bfloat16, not in {placement.dtype}"
    if group.size > 1:
        return "it does not divide a model over ranks"
    if model.config.head_size % _GRAIN:
        return f"head size {model.config.head_size} is no multiple of {_GRAIN}"
    if block_size % _GRAIN:
        return f"block size {block_size} is no multiple of {_GRAIN}"
    return None


def make_program(
    model: Model,
    device_config: DeviceConfig,
    *,
    placement: Placement,
    quantization: Quantization | None,
    block_size: int,
    max_model_len: int,
) -> Program:
    """Compiles a loaded model that can run natively; the model is empty afterwards."""
    program = compile_decoder(
        model,  # type: ignore[arg-type]  # what why_not_natively has checked
        dtype=placement.dtype,
        quantization=quantization,
        block_size=block_size,
        max_model_len=max_model_len,
        num_threads=device_config.num_threads or torch.get_num_threads(),
    )
    logger.info("steps run natively on %s; %s", program.isa.name, program.weights)
    return program


def compile_decoder(
    decoder: Decoder,
    *,
    dtype: torch.dtype,
    quantization: Quantization | None = None,
    block_size: int,
    max_model_len: int,
    num_threads: int,
    isa: Isa | None = None,
) -> Program:
    """Makes a program of the loaded decoder's weights; the decoder cannot run afterwards."""
    config = decoder.config
    shape = ProgramShape(
        element=DTYPES[dtype],
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
    _Compiler(builder, config, dtype, quantization).add(decoder)
    return builder.build(_rotary(config, max_model_len), num_threads=num_threads, isa=isa)


class _Rows:
    """A buffer that products read: as elements, as codes for quantised weights, or as both."""

    def __init__(self, builder: ProgramBuilder, width: int) -> None:
        self.elements = builder.buffer(width)
        self.codes = builder.buffer(width, row=Row.CODES)

    def of(self, weight: Matrix) -> int:
        return self.codes if isinstance(weight, Quantised) else self.elements


class _Compiler:
    """Appends a decoder's ops; layers share their buffers."""

    def __init__(
        self,
        builder: ProgramBuilder,
        config: DecoderConfig,
        dtype: torch.dtype,
        quantization: Quantization | None,
    ) -> None:
        heads = config.num_heads * config.head_size
        both = 2 * config.num_kv_heads * config.head_size
        self._builder, self._config = builder, config
        self._matrices = Matrices(dtype, quantization)
        self._residual = builder.buffer(config.hidden_size, row=Row.FLOATS)
        self._normed = _Rows(builder, config.hidden_size)
        self._qkv = builder.buffer(heads + both, row=Row.FLOATS)
        self._query = builder.buffer(heads)
        self._attended = _Rows(builder, heads)
        self._activated = _Rows(builder, config.intermediate_size)

    def add(self, decoder: Decoder) -> None:
        head = self._add_embedding(decoder)
        for index, layer in enumerate(decoder.layers):
            self._add_attention(layer, index)
            self._add_feed_forward(layer)
        of = self._normed.elements if head.format is Format.PLAIN else self._normed.codes
        eps = self._config.rms_norm_eps
        self._builder.norm(self._residual, of, decoder.norm.weight, eps=eps, of_rows=True)
        self._builder.head(of, head)

    def _add_embedding(self, decoder: Decoder) -> Packed:
        """Adds the embedding and returns the packed head; a tied model uses one matrix for both."""
        build = self._builder
        table = self._matrices.table(decoder.embedding.pop_matrix())
        other = decoder.head.pop_matrix()
        if self._config.tie_embeddings:
            del other
            head = build.arena.pack(table)
            build.embed(self._residual, head)
            return head
        if isinstance(table, Quantised):
            build.embed(self._residual, build.arena.pack(table))
        else:
            build.embed_plain(self._residual, table)
        return build.arena.pack(self._matrices.table(other))

    def _add_attention(self, layer: DecoderLayer, index: int) -> None:
        build, eps = self._builder, self._config.rms_norm_eps
        attention, windows = layer.attention, self._config.sliding_windows
        parts, bias = attention.qkv.pop_parts()
        matrices = self._matrices.side_by_side(parts)
        self._add_norm(layer.input_norm.weight, matrices)
        column = 0
        for matrix in matrices:
            end = column + matrix.shape[0]
            part_of_bias = None if bias is None else bias[column:end]
            source = self._normed.of(matrix)
            build.linear(source, self._qkv, matrix, part_of_bias, Epilogue.STORE, column=column)
            column = end
        norms = attention.qk_norms and (attention.qk_norms[0].weight, attention.qk_norms[1].weight)
        build.rotate(self._qkv, self._query, layer=index, norms=norms, eps=eps)
        window = windows[index] if windows else None
        build.attend(self._query, self._attended.elements, layer=index, window=window)
        self._add_down(self._attended, attention.out)

    def _add_feed_forward(self, layer: DecoderLayer) -> None:
        assert isinstance(layer.feed_forward, FeedForward)
        parts, bias = layer.feed_forward.gate_up.pop_parts()
        matrix = self._matrices.one(parts)
        self._add_norm(layer.post_norm.weight, [matrix])
        source, out = self._normed.of(matrix), self._activated.elements
        self._builder.linear(source, out, matrix, bias, Epilogue.SWIGLU)
        self._add_down(self._activated, layer.feed_forward.down)

    def _add_norm(self, weight: Tensor, readers: list[Matrix]) -> None:
        eps = self._config.rms_norm_eps
        for out in sorted({self._normed.of(reader) for reader in readers}):
            self._builder.norm(self._residual, out, weight, eps=eps)

    def _add_down(self, rows: _Rows, linear: RowParallelLinear) -> None:
        """Adds a product whose result is added to the residual."""
        parts, bias = linear.pop_parts()
        matrix = self._matrices.one(parts)
        if isinstance(matrix, Quantised):
            self._builder.code(rows.elements, rows.codes)
        self._builder.linear(rows.of(matrix), self._residual, matrix, bias, Epilogue.ADD)


def _rotary(config: DecoderConfig, max_model_len: int) -> Tensor:
    """[max_model_len, 2, head_size / 2] float32."""
    return torch.from_numpy(np.stack(config.rope.cos_sin(config.head_size, max_model_len), axis=1))
