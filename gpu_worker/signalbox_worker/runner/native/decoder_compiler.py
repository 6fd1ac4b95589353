"""Compiles a decoder of the Llama family into a native program.

The description is the one that PyTorch's model is built of; the weights come by their names in
Hugging Face's checkpoints.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

import numpy as np

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_kernels.arena import Arena, Packed
from signalbox_kernels.floats import to_dtype, to_float32
from signalbox_kernels.group import Group
from signalbox_kernels.native import best_isa
from signalbox_kernels.program import Program
from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.storage import Matrix, StoredMatrix, stored
from signalbox_kernels.structs import Row
from signalbox_worker.files.checkpoints.kv_scales import KVScales
from signalbox_worker.models.gemma4_config import Gemma4Config
from signalbox_worker.runner.native.attention_compiler import AttentionCompiler
from signalbox_worker.runner.native.feed_forward_compiler import FeedForwardCompiler
from signalbox_worker.runner.native.hidden_states import HiddenStates, Modules
from signalbox_worker.runner.native.kv_places import KVPlaces, kv_places
from signalbox_worker.runner.native.latent_compiler import LatentCompiler
from signalbox_worker.runner.native.layer_inputs import LayerInputs
from signalbox_worker.runner.native.program_parts import RESIDUAL, program_shape, rotary_table
from signalbox_worker.runner.native.recurrent_compiler import RecurrentCompiler
from signalbox_worker.runner.native.weight_shapes import (
    EMBEDDING,
    HEAD,
    NORM,
    RECURRENT,
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
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,)


class OutputHead(NamedTuple):
    """A packed head, and its form, whose blocks are not read again."""

    packed: Packed
    form: StoredMatrix


class Tables(NamedTuple):
    """Packed matrices of a program with a row for each token; None of those that it lacks."""

    embedding: Packed | None = None
    head: OutputHead | None = None


NO_TABLES = Tables()


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
) -> tuple[Program, Tables]:
    """Makes a program of a decoder's weights, which are read and packed one by one; returns the
    tables, too, which live as long as the program.

    Without instructions for bfloat16, a program of that dtype stores its weights so and computes in
    float32.

    Args:
        arena: what packs them.
        factors: rows that blocks are multiplied with: codes, wide ones, or elements.
        max_lora_rank: largest r of an adapter that will be set; 0 takes none.
        group: tensor-parallel ranks, of one of which the weights are; None is one rank.
    """
    hidden, places = begin_decoder(
        weights,
        kv,
        arena=arena,
        factors=factors,
        max_lora_rank=max_lora_rank,
        is_divided=group is not None,
    )
    compiler = DecoderCompiler(hidden, places, kv_scales=kv.scales, max_model_len=max_model_len)
    tables = compiler.add()
    program = finish_decoder(
        hidden, max_model_len=max_model_len, num_threads=num_threads, group=group
    )
    return program, tables


def begin_decoder(
    weights: Weights,
    kv: KVForm,
    *,
    arena: Arena,
    factors: Row,
    max_lora_rank: int = 0,
    is_divided: bool = False,
) -> tuple[HiddenStates, KVPlaces]:
    """Returns the hidden states that ops are added to, and the places of K and V."""
    config = weights.share.config
    places = kv_places(config, weights.stage, kv.groups)
    shape = program_shape(
        config,
        weights.dtype,
        isa=best_isa(),
        block_size=kv.block_size,
        places=places,
        kv_dtype=kv.dtype,
    )
    hidden = HiddenStates(
        ProgramBuilder(shape, arena),
        weights,
        factors=factors,
        max_lora_rank=max_lora_rank,
        is_divided=is_divided,
    )
    return hidden, places


def finish_decoder(
    hidden: HiddenStates, *, max_model_len: int, num_threads: int, group: Group | None = None
) -> Program:
    """Makes the program of all ops that were added."""
    config = hidden.config
    rotates = len(config.unrotated_layers) < config.num_layers  # else no position is read
    rotary = rotary_table(config.rope, config.rope_head_size, max_model_len if rotates else 1)
    return hidden.builder.build(rotary, num_threads=num_threads, isa=best_isa(), group=group)


class DecoderCompiler:
    """Appends a decoder's ops."""

    def __init__(
        self, hidden: HiddenStates, places: KVPlaces, *, kv_scales: KVScales, max_model_len: int
    ) -> None:
        config = hidden.config
        self.hidden, self.config, self.builder = hidden, config, hidden.builder
        self.weights = hidden.weights
        self._stage = hidden.weights.stage
        self._first_token = hidden.weights.share.tokens.start
        self._attention = (
            AttentionCompiler(hidden, places, kv_scales=kv_scales, max_model_len=max_model_len)
            if config.latents is None
            else LatentCompiler(hidden, config.latents, places)
        )
        self._recurrent = None
        if config.recurrence is not None:
            self._recurrent = RecurrentCompiler(hidden, config.recurrence)
        self._inputs = None
        if isinstance(config, Gemma4Config) and config.layer_input_size:
            self._inputs = LayerInputs(hidden, config)
        self._feed_forward = FeedForwardCompiler(hidden, ends_layer=self._inputs is None)

    @property
    def last_norm(self) -> str:
        """Name of the norm before the head."""
        return NORM

    def add(self) -> Tables:
        """Adds all ops; returns the tables."""
        tables, hidden = self.add_ends(), self.hidden
        for index in self._stage.indices:
            self._add_layer(index)
        if (head := tables.head) is not None:
            norm = hidden.norm(self.last_norm, divisor=self.config.logit_divisor)
            [(source, rounding)] = hidden.normed.begin([head.form])
            self.builder.norm(RESIDUAL, source, norm, of_rows=True, rounding=rounding)
            cap = self.config.logit_soft_cap
            self.builder.head(source, head.packed, first_token=self._first_token, cap=cap)
        return tables

    def _add_layer(self, index: int) -> None:
        config = self.config
        beside = self._feed_forward.first_matrices(index) if config.is_parallel else None
        if index not in config.feed_forward_layers:
            self._add_mixer(index, beside)
        if config.has_feed_forward(index):
            self._feed_forward.add(index, beside)
        if self._inputs is not None:
            self._inputs.add_to(index)

    def _add_mixer(self, index: int, beside: Modules | None) -> None:
        """Adds attention, or the recurrence that a layer has in its place.

        Args:
            beside: first matrices of the feed-forward, if they read the same rows.
        """
        if self._recurrent is not None and index in self.config.recurrent_layers:
            rows, name = self._recurrent.add(index), f"{RECURRENT}.out_proj"
        else:
            rows = self._attention.add(index, [] if beside is None else beside.matrices)
            name = "self_attn.o_proj"
        name = f"{layer_prefix(index)}{name}"
        self.hidden.add_down(rows, name, self.config.inner_norms[0], index)

    def add_ends(self) -> Tables:
        """Adds the embedding, if the stage has it; returns the packed tables, with the head if the
        stage has that.

        A tied model uses one matrix for both.
        """
        build, is_tied, packed = self.builder, self.config.tie_embeddings, None
        if self._stage.is_first:
            table = self.weights.matrix(EMBEDDING)
            packed = build.arena.pack(table)
            self.add_embedding(self.hidden.part, packed)
            self.hidden.add_sum(adds=False)
            if self._inputs is not None:
                self._inputs.add()
        if not self._stage.is_last or not self.config.has_head:
            return Tables(packed)
        if is_tied and packed is not None:
            return Tables(packed, OutputHead(packed, _form_of(table)))
        head = self.weights.matrix(EMBEDDING if is_tied else HEAD)
        return Tables(packed, OutputHead(build.arena.pack(head), _form_of(head)))

    def add_embedding(self, dst: int, table: Packed) -> None:
        """Adds the rows of tokens, times the model's factor."""
        scale = np.array([self.config.embedding_scale], dtype=np.float32)
        if self.config.rounds_embedding_scale:
            scale = to_float32(to_dtype(scale, self.weights.dtype))
        self.builder.embed(dst, table, first_token=self._first_token, scale=float(scale[0]))


def _form_of(matrix: Matrix) -> StoredMatrix:
    """Returns a matrix without what reads it, which would keep a file or an array."""

    def read() -> NoReturn:
        raise AssertionError("a packed matrix is not read again")

    return replace(stored(matrix), read=read, read_rows=None)
