"""The two ends of a decoder, divided by vocabulary over a tensor-parallel group."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from signalbox_kernels.torch.linear import PackedWeight, pack_weight
from signalbox_worker.device.parallel_group import ParallelGroup
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.models.layers.weight_placement import Placement, WeightTarget, copy_checked


class _VocabShard:
    """Rows of this shard in a [vocab_size, hidden_size] matrix, padded on the last shard."""

    def __init__(
        self, *, vocab_size: int, hidden_size: int, placement: Placement, group: ParallelGroup
    ) -> None:
        self._vocab_size = vocab_size
        self._group = group
        rows = -(-vocab_size // group.size)
        self._start = group.own(rows).start
        self._weight = placement.empty(rows, hidden_size)

    def load_weight(self, tensor: Tensor) -> None:
        """Takes the checkpoint's whole matrix; rows past vocab_size, padding there, are dropped."""
        rows = tensor[: self._vocab_size][self._start : self._start + self._weight.shape[0]]
        self._weight[len(rows) :].zero_()
        expected = min(self._weight.shape[0], max(0, self._vocab_size - self._start))
        copy_checked(self._weight[:expected], rows)


ShardT = TypeVar("ShardT", bound=_VocabShard)


class VocabParallelEmbedding(_VocabShard):
    """Turns token ids into vectors."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Returns [num_tokens, hidden_size] for [num_tokens] int64."""
        if self._group.size == 1:
            return F.embedding(token_ids, self._weight)
        local = token_ids - self._start
        foreign = (local < 0) | (local >= self._weight.shape[0])
        vectors = F.embedding(local.masked_fill(foreign, 0), self._weight)
        return self._group.all_reduce(vectors.masked_fill(foreign[:, None], 0))

    def tie(self, head: "ParallelLMHead") -> None:
        """Makes `head` use this matrix."""
        head.use(self._weight)


class ParallelLMHead(_VocabShard):
    """Turns hidden states into logits."""

    _packed: PackedWeight | None = None

    def use(self, weight: Tensor) -> None:
        """Uses another layer's matrix."""
        self._weight = weight

    def finish(self) -> None:
        """Packs the weight, after it is loaded or tied."""
        self._packed = pack_weight(self._weight)
        self._weight = torch.empty(0)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Returns [num_rows, vocab_size] for [num_rows, hidden_size]."""
        assert self._packed is not None, "finish() comes before the first call"
        logits = self._group.all_gather(self._packed.apply(hidden, None))
        return logits[:, : self._vocab_size]


class VocabularyEnds:
    """Embedding and head of a model, or of a pipeline stage, which has one of them or neither.

    A tied model uses one matrix for both; if they lie on different stages, each has a copy.
    """

    def __init__(
        self,
        stage: StageLayers,
        *,
        vocab_size: int,
        hidden_size: int,
        is_tied: bool,
        placement: Placement,
        group: ParallelGroup,
        has_head: bool = True,
    ) -> None:
        def make(kind: type[ShardT]) -> ShardT:
            return kind(
                vocab_size=vocab_size, hidden_size=hidden_size, placement=placement, group=group
            )

        self._is_tied = is_tied
        self._embedding = make(VocabParallelEmbedding) if stage.is_first else None
        self._head: ParallelLMHead | None = None
        if stage.is_last and has_head:
            self._head = make(ParallelLMHead)
            if is_tied and self._embedding is not None:
                self._embedding.tie(self._head)

    def weight_targets(self, embedding: str, head: str) -> dict[str, WeightTarget]:
        """Args are the names in the checkpoint."""
        targets: dict[str, WeightTarget] = {}
        if self._head is not None:
            targets[embedding if self._is_tied else head] = self._head.load_weight
        if self._embedding is not None:  # which a tied head shares
            targets[embedding] = self._embedding.load_weight
        return targets

    def finish(self) -> None:
        if self._head is not None:
            self._head.finish()

    def embedded(self, token_ids: Tensor) -> Tensor:
        """Returns [num_tokens, hidden_size]; on the first stage alone."""
        assert self._embedding is not None, "the first stage looks tokens up"
        return self._embedding(token_ids)

    def head(self, hidden: Tensor) -> Tensor:
        """Returns [num_rows, vocab_size]; on the last stage alone."""
        assert self._head is not None, "the last stage computes logits"
        return self._head(hidden)


class LearnedPositions:
    """Looks positions up in a table of vectors; every shard holds the whole table."""

    def __init__(
        self, num_positions: int, hidden_size: int, *, offset: int, placement: Placement
    ) -> None:
        self._offset = offset
        self._weight = placement.empty(num_positions + offset, hidden_size)

    def load_weight(self, tensor: Tensor) -> None:
        """Takes the checkpoint's table; its first `offset` rows belong to no position."""
        copy_checked(self._weight, tensor)

    def weight_targets(self, name: str) -> dict[str, WeightTarget]:
        """`name` is the table's in the checkpoint."""
        return {f"{name}.weight": self.load_weight}

    def __call__(self, positions: Tensor) -> Tensor:
        """Returns [num_tokens, hidden_size] for [num_tokens] int64."""
        return F.embedding(positions + self._offset, self._weight)
