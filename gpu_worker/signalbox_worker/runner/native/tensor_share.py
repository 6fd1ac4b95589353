"""Cuts the share of a tensor-parallel rank out of a decoder.

Column- and row-parallel halves as in Megatron-LM (Shoeybi et al., 2019): heads, and the inner
columns of the feed-forward network, are divided, and what the ranks make of them is summed.
Embedding and head are divided by tokens, recurrent layers by heads (`recurrent_share`).
Inner columns are cut between blocks of the matrix that sums over them, so ranks may differ by a
block.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from signalbox_kernels.adapters import LoraPair
from signalbox_kernels.floats import AnyArray
from signalbox_worker.device.division import divided, first_kv_head, kv_heads_per_rank
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints.coded_matrices import code_block_size
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.gemma4_config import Gemma4Config
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.models.recurrence import GatedConvolution, Mamba2
from signalbox_worker.runner.native.recurrent_share import RecurrentShare, Rows, recurrent_share
from signalbox_worker.runner.native.weight_shapes import (
    GATED_PARTS,
    RECURRENT,
    SINKS,
    TABLES,
    names_of_stage,
    weight_shapes,
)

LEAST_BLOCK = 32
"""Columns that activations share a scale by, and the least that a rank takes."""
_SUMMED = ("o_proj", "out_proj", "down_proj")
"""Matrices of which each rank has some columns; their bias is that of rank 0."""

_OF_GATED = tuple(f".q_proj.{part}" for part in GATED_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShare:
    """The share of one rank."""

    whole: DecoderConfig
    rank: int = 0
    size: int = 1
    block_size: int = LEAST_BLOCK
    """Columns of the inner ones that lie on one rank."""

    @property
    def config(self) -> DecoderConfig:
        """The decoder that the rank computes. Raises ModelError if heads cannot be divided."""
        whole = self.whole
        sizes: dict[str, Any] = {
            name: len(self._inner(inner)) for name, inner in _inner_sizes(whole).items()
        }
        return replace(
            whole,
            num_heads=divided(whole.num_heads, "num_attention_heads", self.size),
            num_kv_heads=kv_heads_per_rank(whole.num_kv_heads, self.size),
            recurrence=None if whole.recurrence is None else self._recurrent.sizes,
            **sizes,
        )

    @property
    def tokens(self) -> range:
        """Tokens of the vocabulary whose rows the rank has."""
        most = -(-self.whole.vocab_size // self.size)
        return range(self.whole.vocab_size)[self.rank * most : (self.rank + 1) * most]

    def rows(self, name: str) -> Rows:
        """Returns the rows of a tensor that the rank has, as runs of neighbours."""
        num_rows = weight_shapes(self.whole)[name][0]
        if self.size == 1:
            return (range(num_rows),)
        if part := _part(name):
            return self._recurrent.rows.get(part, (range(num_rows),))
        return (self._neighbours(name, num_rows),)

    def _neighbours(self, name: str, num_rows: int) -> range:
        if name in TABLES:
            return self.tokens
        if name.endswith(f".{SINKS}"):
            first = self._heads("q").start // self.whole.head_size
            return range(first, first + self.config.num_heads)
        match _module(name):
            case "q_proj" if (
                self.whole.gates_attention
            ):  # with as many rows of a gate for each head
                heads = self._heads("q")
                return range(2 * heads.start, 2 * heads.stop)
            case "q_proj" | "k_proj" | "v_proj" as module:
                return self._heads(module[0])
            case "gate_proj" | "up_proj" | "w1" | "w3":
                return self._inner(num_rows)
        return range(num_rows)

    def columns(self, name: str) -> range:
        num_columns = weight_shapes(self.whole)[name][1]
        if self.size == 1:
            return range(num_columns)
        if _part(name) == "out_proj":
            return self._recurrent.columns
        match _module(name):
            case "o_proj":
                return self._heads("q")
            case "down_proj" | "w2":
                return self._inner(num_columns)
        return range(num_columns)

    def has(self, name: str) -> bool:
        """Says whether the rank has anything of a tensor."""
        return self.rank == 0 or not (name.endswith(".bias") and _module(name) in _SUMMED)

    def names(self, stage: StageLayers) -> set[str]:
        """Returns the tensors of a pipeline stage that the rank has anything of."""
        return {name for name in names_of_stage(self.whole, stage) if self.has(name)}

    def pair(self, module: str, pair: LoraPair) -> LoraPair:
        """Returns the rank's share of what an adapter adds to a module."""
        if module.endswith(_OF_GATED):  # a part of the heads that the matrix of queries has
            return LoraPair(pair.a, taken(pair.b, (self._heads("q"),)))
        name = f"{module}.weight"
        columns = self.columns(name)
        a = pair.a[:, columns.start : columns.stop]
        return LoraPair(a, taken(pair.b, self.rows(name)))

    @property
    def norms_over_ranks(self) -> bool:
        """True if a norm behind a scan is of columns of all ranks."""
        kept = self.whole.recurrence
        return isinstance(kept, Mamba2) and kept.num_groups < self.size

    @property
    def _recurrent(self) -> RecurrentShare:
        """Raises ModelError if heads cannot be divided."""
        kept = self.whole.recurrence
        assert kept is not None, "of a model with recurrent layers"
        channels = self._inner(kept.channels)
        return recurrent_share(kept, self.rank, self.size, channels=channels)

    def _heads(self, kind: str) -> range:
        """Returns the rows of Q, K or V."""
        whole, size = self.whole, self.whole.head_size
        if kind == "q":
            count = divided(whole.num_heads, "num_attention_heads", self.size)
            first = self.rank * count
        else:
            count = kv_heads_per_rank(whole.num_kv_heads, self.size)
            first = first_kv_head(whole.num_kv_heads, self.size, self.rank)
        return range(first * size, (first + count) * size)

    def _inner(self, size: int) -> range:
        """Returns the rank's columns of a feed-forward, or of an expert."""
        block = self.block_size
        if -(-size // block) < self.size:
            block = LEAST_BLOCK  # matrices of larger blocks are decoded
        count = -(-size // block)
        first, end = (count * rank // self.size for rank in (self.rank, self.rank + 1))
        return range(size)[first * block : end * block]


def tensor_share(
    config: DecoderConfig, parallel: ParallelConfig, stored: Mapping[str, StoredTensor]
) -> TensorShare:
    """Returns a rank's share of a decoder, whose tensors are in `stored`.

    Raises ModelError if heads cannot be divided.
    """
    endings = (".down_proj.weight", ".w2.weight", ".out_proj.weight")
    blocks = {_block_size(tensor) for name, tensor in stored.items() if name.endswith(endings)}
    block_size = math.lcm(LEAST_BLOCK, *blocks)
    size, rank = parallel.tensor_parallel_size, parallel.tensor_rank
    share = TensorShare(whole=config, rank=rank, size=size, block_size=block_size)
    _ = share.config  # raises before threads read parts of heads
    return share


def why_not_divided(config: DecoderConfig, size: int) -> str | None:
    """Says what a rank would have nothing of; None if each has something of all."""
    if config.latents is not None:
        return "its heads share one latent"
    kept = config.recurrence
    if isinstance(kept, GatedConvolution) and -(-kept.channels // LEAST_BLOCK) < size:
        return f"the {kept.channels} channels of a layer have fewer than {size} blocks"
    for name, inner in _inner_sizes(config).items():
        if -(-inner // LEAST_BLOCK) < size:
            return f"{name} {inner} has fewer than {size} blocks"
    if isinstance(config, Gemma4Config):
        return "its layers have heads of several sizes"
    if config.qk_norm_is_whole:
        return "its norms of Q and K are of all heads together"
    if any(not TensorShare(whole=config, rank=rank, size=size).tokens for rank in range(size)):
        return f"vocab_size {config.vocab_size} is too small for {size} ranks"
    return None


def _inner_sizes(config: DecoderConfig) -> dict[str, int]:
    """Returns the inner columns of what is between two products, by the names of their fields."""
    sizes = {"intermediate_size": config.intermediate_size}
    if isinstance(config, MoeConfig):
        sizes["expert_size"] = config.expert_size
        if config.shared_size:
            sizes["shared_size"] = config.shared_size
    return sizes


def taken(values: AnyArray, rows: Rows) -> AnyArray:
    """Returns some rows of an array."""
    found = [values[one.start : one.stop] for one in rows]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _module(name: str) -> str:
    return name.split(".")[-2]


def _part(name: str) -> str:
    """Returns the name of a tensor's module within its recurrent layer, or nothing."""
    found = name.partition(f".{RECURRENT}.")[2]
    return found.removesuffix(".weight").removesuffix(".bias")


def _block_size(tensor: StoredTensor) -> int:
    if tensor.blocks is not None:
        return tensor.blocks.type.block_size
    return 1 if tensor.form is None else code_block_size(tensor.form) or 1
