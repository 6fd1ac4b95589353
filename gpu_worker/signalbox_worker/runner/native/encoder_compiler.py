"""Compiles an encoder, whose tokens see those behind them too, into a native program.

Its residual, buffer `RESIDUAL`, ends as the encoder's last hidden states, all norms applied.
"""

import numpy as np

from signalbox_kernels.arena import Arena
from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.native import Isa, best_isa
from signalbox_kernels.op_parameters import CachedLayer, LayerRotation, Norm
from signalbox_kernels.program import Program
from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.structs import PANEL, Epilogue, Index, Row
from signalbox_worker.models.distance_buckets import distance_buckets
from signalbox_worker.models.encoder_config import (
    DISTANCE_BIASES,
    BertConfig,
    EncoderConfig,
    ModernBertConfig,
    NomicBertConfig,
)
from signalbox_worker.runner.native.encoder_weights import EncoderWeights
from signalbox_worker.runner.native.kv_places import KVPlaces
from signalbox_worker.runner.native.program_parts import (
    ACTIVATIONS,
    RESIDUAL,
    program_shape,
    rotary_table,
)


def compile_encoder(
    config: EncoderConfig,
    weights: EncoderWeights,
    *,
    block_size: int,
    max_model_len: int,
    num_threads: int,
    isa: Isa | None = None,
) -> Program:
    """Makes a program of an encoder's weights; `compile_decoder` explains the arguments.

    K and V lie in blocks while a step runs.
    """
    isa = best_isa() if isa is None else isa
    places = KVPlaces(config.num_layers, config.num_kv_heads, config.head_size)
    shape = program_shape(config, weights.dtype, isa=isa, block_size=block_size, places=places)
    builder = ProgramBuilder(shape, Arena(num_threads=num_threads))
    if isinstance(config, ModernBertConfig):
        _ModernBertCompiler(builder, config, weights, max_model_len).add()
    elif isinstance(config, NomicBertConfig):
        _NomicBertCompiler(builder, config, weights).add(
            rotary_table(config.rope, config.head_size, max_model_len)
        )
    else:
        assert isinstance(config, BertConfig), "encoders without a program are refused before"
        _BertCompiler(builder, config, weights).add(max_model_len)
    unturned = np.zeros((max_model_len, 2, config.head_size // 2), dtype=np.float32)
    unturned[:, 0] = 1
    return builder.build(unturned, num_threads=num_threads, isa=isa)


class _EncoderCompiler:
    """Appends what encoders share; layers share their buffers."""

    def __init__(
        self, builder: ProgramBuilder, config: EncoderConfig, weights: EncoderWeights
    ) -> None:
        self.builder, self.weights = builder, weights
        self.config, self._eps = config, config.norm_eps
        self.residual = builder.buffer(config.hidden_size, row=Row.FLOATS)
        assert self.residual == RESIDUAL
        self.normed = builder.buffer(config.hidden_size)
        self.activated = builder.buffer(config.intermediate_size)
        heads = config.num_heads * config.head_size
        self._qkv = builder.buffer(2 * heads + -(-heads // PANEL) * PANEL, row=Row.FLOATS)
        self._query, self._attended = builder.buffer(heads), builder.buffer(heads)

    def norm(self, name: str) -> None:
        """Norms the residual for the next product."""
        self.builder.norm(self.residual, self.normed, self._norm(name))

    def norm_residual(self, name: str) -> None:
        """Norms the residual itself, and for the next product."""
        norm = self._norm(name)
        self.builder.norm(self.residual, self.normed, norm)
        self.builder.norm(self.residual, self.residual, norm, to_floats=True)

    def _norm(self, name: str) -> Norm:
        return Norm(
            weight=self.weights.vector(f"{name}.weight"),
            bias=self.weights.vector_if_any(f"{name}.bias"),
            eps=self._eps,
            is_centred=True,
        )

    def embed(self, name: str, index: Index, *, first: int = 0) -> None:
        table = self.builder.arena.pack(self.weights.matrix(name))
        adds = index is not Index.TOKEN_IDS
        self.builder.embed(self.residual, table, index=index, adds=adds, first_token=first)

    def attention(
        self,
        index: int,
        inputs: list[str],
        output: str,
        *,
        rotary: AnyArray | None = None,
        biases: AnyArray | None = None,
    ) -> None:
        """Adds attention of what is normed to the residual.

        Args:
            inputs: products whose outputs are Q, K and V, one after another.
            biases: of scores, as `ProgramBuilder.attend` takes them.
        """
        build, windows, column = self.builder, self.config.sliding_windows, 0
        for name in inputs:
            matrix = self.weights.matrix(f"{name}.weight")
            bias = self.weights.vector_if_any(f"{name}.bias")
            build.linear(self.normed, self._qkv, matrix, bias, Epilogue.STORE, column=column)
            column += matrix.shape[0]
        layer = CachedLayer(index)
        build.rotate(self._qkv, self._query, layer, LayerRotation(table=rotary))
        window = windows[index] if windows else None
        src, dst = self._query, self._attended
        build.attend(src, dst, layer, window=window, is_causal=False, biases=biases)
        self.add_product(self._attended, output)

    def activate(self, name: str, epilogue: Epilogue) -> None:
        """Adds the product with the function of the feed-forward."""
        bias = self.weights.vector_if_any(f"{name}.bias")
        self.activate_matrix(self.weights.matrix(f"{name}.weight"), bias, epilogue)

    def activate_matrix(self, matrix: AnyArray, bias: AnyArray | None, epilogue: Epilogue) -> None:
        function = ACTIVATIONS[self.config.activation]
        self.builder.linear(
            self.normed, self.activated, matrix, bias, epilogue, activation=function
        )

    def add_product(self, src: int, name: str) -> None:
        matrix = self.weights.matrix(f"{name}.weight")
        bias = self.weights.vector_if_any(f"{name}.bias")
        self.builder.linear(src, self.residual, matrix, bias, Epilogue.ADD)


class _BertCompiler(_EncoderCompiler):
    """BERT, DistilBERT, RoBERTa and MPNet: learned positions, and norms behind sums."""

    def __init__(
        self, builder: ProgramBuilder, config: BertConfig, weights: EncoderWeights
    ) -> None:
        super().__init__(builder, config, weights)
        self._position_offset = config.position_offset
        self._num_buckets = config.num_distance_buckets

    def add(self, num_positions: int) -> None:
        biases: AnyArray | None = None
        if self._num_buckets:
            table = to_float32(self.weights.matrix(DISTANCE_BIASES))
            biases = table[distance_buckets(self._num_buckets, num_positions)].T
        embeddings, first = "embeddings.", -self._position_offset
        self.embed(f"{embeddings}word_embeddings.weight", Index.TOKEN_IDS)
        if self.config.num_token_types:
            self.embed(f"{embeddings}token_type_embeddings.weight", Index.TOKEN_TYPES)
        self.embed(f"{embeddings}position_embeddings.weight", Index.POSITIONS, first=first)
        self.norm_residual(f"{embeddings}LayerNorm")
        for index in range(self.config.num_layers):
            layer = f"encoder.layer.{index}."
            inputs = [f"{layer}attention.self.{part}" for part in ("query", "key", "value")]
            self.attention(index, inputs, f"{layer}attention.output.dense", biases=biases)
            self.norm_residual(f"{layer}attention.output.LayerNorm")
            self.activate(f"{layer}intermediate.dense", Epilogue.ACTIVATE)
            self.add_product(self.activated, f"{layer}output.dense")
            self.norm_residual(f"{layer}output.LayerNorm")


class _ModernBertCompiler(_EncoderCompiler):
    """ModernBERT: rotation by a table for each kind of layer, and norms before each part."""

    def __init__(
        self,
        builder: ProgramBuilder,
        config: ModernBertConfig,
        weights: EncoderWeights,
        max_model_len: int,
    ) -> None:
        super().__init__(builder, config, weights)
        self._tables = [
            rotary_table(rope, config.head_size, max_model_len)
            for rope in (config.rope, config.sliding_rope)
        ]

    def add(self) -> None:
        self.embed("embeddings.tok_embeddings.weight", Index.TOKEN_IDS)
        self.norm_residual("embeddings.norm")
        for index, window in enumerate(self.config.sliding_windows):
            layer = f"layers.{index}."
            if index:
                self.norm(f"{layer}attn_norm")
            rotary = self._tables[window is not None]
            self.attention(index, [f"{layer}attn.Wqkv"], f"{layer}attn.Wo", rotary=rotary)
            self.norm(f"{layer}mlp_norm")
            self.activate(f"{layer}mlp.Wi", Epilogue.GATED)
            self.add_product(self.activated, f"{layer}mlp.Wo")
        self.norm_residual("final_norm")


class _NomicBertCompiler(_EncoderCompiler):
    """Nomic BERT: rotation, gated activations, and norms behind sums."""

    def add(self, rotary: AnyArray) -> None:
        self.embed("embeddings.word_embeddings.weight", Index.TOKEN_IDS)
        self.embed("embeddings.token_type_embeddings.weight", Index.TOKEN_TYPES)
        self.norm_residual("embeddings.LayerNorm")
        for index in range(self.config.num_layers):
            layer = f"layers.{index}."
            inputs = [f"{layer}self_attn.{part}_proj" for part in "qkv"]
            self.attention(index, inputs, f"{layer}self_attn.o_proj", rotary=rotary)
            self.norm_residual(f"{layer}post_attention_layernorm")
            halves = (f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up"))
            self.activate_matrix(self.weights.matrices(*halves), None, Epilogue.GATED)
            self.add_product(self.activated, f"{layer}mlp.down_proj")
            self.norm_residual(f"{layer}post_mlp_layernorm")
