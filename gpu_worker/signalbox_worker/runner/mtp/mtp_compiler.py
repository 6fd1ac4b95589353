"""Compiles an MTP layer into a native program, which looks tokens up in the tables of its model's.

The layer joins the hidden state of a token with the embedding of the next one, and predicts the one
behind that (DeepSeek-V3, 2024, section 2.2). The program is that of a last pipeline stage, which
takes hidden states, but also looks tokens up.
"""

from signalbox_kernels.arena import Arena
from signalbox_kernels.op_parameters import Norm
from signalbox_kernels.program import Program
from signalbox_kernels.structs import Epilogue, Row
from signalbox_worker.runner.native.decoder_compiler import (
    DecoderCompiler,
    KVForm,
    Tables,
    begin_decoder,
    finish_decoder,
)
from signalbox_worker.runner.native.hidden_states import HiddenStates
from signalbox_worker.runner.native.kv_places import KVPlaces
from signalbox_worker.runner.native.program_parts import RESIDUAL
from signalbox_worker.runner.native.weight_shapes import (
    MTP_NORM,
    OF_STATES,
    OF_TOKENS,
    STATE_NORM,
    TOKEN_NORM,
    layer_prefix,
)
from signalbox_worker.runner.native.weights import Weights


def compile_mtp_layer(
    weights: Weights,
    kv: KVForm,
    tables: Tables,
    *,
    arena: Arena,
    max_model_len: int,
    num_threads: int,
    factors: Row,
) -> Program:
    """Makes a program of the weights of a stage that has the MTP layer alone.

    Args:
        tables: those of the model's program, which has to live as long.
    """
    hidden, places = begin_decoder(weights, kv, arena=arena, factors=factors)
    MtpCompiler(hidden, places, kv, tables, max_model_len=max_model_len).add()
    return finish_decoder(hidden, max_model_len=max_model_len, num_threads=num_threads)


class MtpCompiler(DecoderCompiler):
    """Appends the ops of an MTP layer."""

    def __init__(
        self,
        hidden: HiddenStates,
        places: KVPlaces,
        kv: KVForm,
        tables: Tables,
        *,
        max_model_len: int,
    ) -> None:
        super().__init__(hidden, places, kv_scales=kv.scales, max_model_len=max_model_len)
        assert hidden.config.mtp_layer is not None
        self._prefix, self._tables = layer_prefix(hidden.config.mtp_layer), tables

    @property
    def last_norm(self) -> str:
        return f"{self._prefix}{MTP_NORM}"

    def add_ends(self) -> Tables:
        """Adds what joins hidden states with embeddings, each normed first."""
        hidden, build, table = self.hidden, self.builder, self._tables.embedding
        assert table is not None, "the model's program is not divided into stages"
        of_states = self.weights.matrix(f"{self._prefix}{OF_STATES}")
        of_tokens = self.weights.matrix(f"{self._prefix}{OF_TOKENS}")
        states = hidden.rows("states", self.config.hidden_size)
        for out, rounding in states.begin([of_states]):
            build.norm(RESIDUAL, out, self._norm(STATE_NORM), rounding=rounding)
        self.add_embedding(RESIDUAL, table)
        for out, rounding in hidden.normed.begin([of_tokens]):
            build.norm(RESIDUAL, out, self._norm(TOKEN_NORM), rounding=rounding)
        build.linear(hidden.normed.read(of_tokens), RESIDUAL, of_tokens, None, Epilogue.STORE)
        build.linear(states.read(of_states), RESIDUAL, of_states, None, Epilogue.ADD)
        return self._tables

    def _norm(self, name: str) -> Norm:
        return self.hidden.norm(f"{self._prefix}{name}")
