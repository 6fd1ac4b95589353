"""Compiles a decoder into a native program: the same description and weights that Torch would run.

Weights are packed one by one and given up as they go, so that a model is never in memory twice.
"""

import torch
from torch import Tensor

from gpu_worker.layers import ParallelGroup, Placement
from gpu_worker.models.config import DecoderConfig
from gpu_worker.models.decoder import Decoder, DecoderLayer, FeedForward
from signalbox_kernels.arena import DTYPES, Arena
from signalbox_kernels.native import Epilogue, Isa
from signalbox_kernels.program import Program, ProgramBuilder, ProgramShape

_GRAIN = 16  # tokens and head elements come in vectors of so many


def why_not_native(
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
        return "it runs one rank"
    if model.config.head_size % _GRAIN:
        return f"head size {model.config.head_size} is no multiple of {_GRAIN}"
    if block_size % _GRAIN:
        return f"block size {block_size} is no multiple of {_GRAIN}"
    return None


def compile_decoder(
    decoder: Decoder,
    *,
    dtype: torch.dtype,
    block_size: int,
    max_model_len: int,
    num_threads: int,
    isa: Isa | None = None,
) -> Program:
    """Takes the loaded decoder's weights; the decoder cannot run afterwards."""
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
    _add_ops(builder, decoder)
    return builder.build(_rotary(config, max_model_len), num_threads=num_threads, isa=isa)


def _add_ops(builder: ProgramBuilder, decoder: Decoder) -> None:
    config = decoder.config
    residual = builder.buffer(config.hidden_size, is_float=True)
    normed = builder.buffer(config.hidden_size, is_float=False)
    packed = builder.arena.pack(decoder.head.take())
    table = decoder.embedding.take()
    is_tied = config.tie_embeddings  # then the packed head is the embedding, too
    builder.embed(residual, packed if is_tied else builder.arena.keep(table), is_packed=is_tied)
    del table
    layers = _LayerCompiler(builder, config, residual=residual, normed=normed)
    for index, layer in enumerate(decoder.layers):
        layers.add(layer, index)
    eps = config.rms_norm_eps
    builder.norm(residual, normed, decoder.norm.weight, eps=eps, of_rows=True)
    builder.head(normed, packed)


class _LayerCompiler:
    """Appends layers, which share their buffers."""

    def __init__(
        self, builder: ProgramBuilder, config: DecoderConfig, *, residual: int, normed: int
    ) -> None:
        heads = config.num_heads * config.head_size
        both = 2 * config.num_kv_heads * config.head_size
        self._builder, self._config = builder, config
        self._residual, self._normed = residual, normed
        self._qkv = builder.buffer(heads + both, is_float=True)
        self._query = builder.buffer(heads, is_float=False)
        self._attended = builder.buffer(heads, is_float=False)
        self._activated = builder.buffer(config.intermediate_size, is_float=False)

    def add(self, layer: DecoderLayer, index: int) -> None:
        self._add_attention(layer, index)
        build, eps = self._builder, self._config.rms_norm_eps
        build.norm(self._residual, self._normed, layer.post_norm.weight, eps=eps)
        assert isinstance(layer.feed_forward, FeedForward)
        gate_up, down = layer.feed_forward.gate_up.take(), layer.feed_forward.down.take()
        build.linear(self._normed, self._activated, *gate_up, Epilogue.SWIGLU)
        build.linear(self._activated, self._residual, *down, Epilogue.ADD)

    def _add_attention(self, layer: DecoderLayer, index: int) -> None:
        build, eps = self._builder, self._config.rms_norm_eps
        attention, windows = layer.attention, self._config.sliding_windows
        norms = attention.qk_norms and (attention.qk_norms[0].weight, attention.qk_norms[1].weight)
        build.norm(self._residual, self._normed, layer.input_norm.weight, eps=eps)
        build.linear(self._normed, self._qkv, *attention.qkv.take(), Epilogue.STORE)
        build.rotate(self._qkv, self._query, layer=index, norms=norms, eps=eps)
        window = windows[index] if windows else None
        build.attend(self._query, self._attended, layer=index, window=window)
        build.linear(self._attended, self._residual, *attention.out.take(), Epilogue.ADD)


def _rotary(config: DecoderConfig, max_model_len: int) -> Tensor:
    """[max_model_len, 2, head_size / 2] float32."""
    positions = torch.arange(max_model_len, dtype=torch.float32)
    radians = torch.outer(positions, config.rope.inv_freq(config.head_size))
    return torch.stack([radians.cos(), radians.sin()], dim=1)
