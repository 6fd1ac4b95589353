"""Steps as graphs: the whole forward pass, and the logits, by one launch.

The launches of a step's kernels cost the host more than the device needs to run them, as vLLM and
SGLang found too. There are graphs for steps in which all sequences decode, one for each size of a
ladder, and for mixed steps, one for each number of tokens of another, with room for all sequences.
All lie in one pool of memory, the largest recorded first, so that the others fit into what it has
left. A batch takes the next larger one; the rest of that is padding. Steps of more tokens than the
last graph has keep the device busy for longer than their launches take, and stay eager.
"""

import logging
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.input_transfer import PinnedBuffers, StepInputs
from signalbox_worker.device.graphs import Graph, GraphRecorder, NotCapturable
from signalbox_worker.models.layers import AttentionPlan, ForwardContext
from signalbox_worker.runner.executors.graph_inputs import GraphBuffers, GraphSize
from signalbox_worker.runner.loading.loaded_model import LoadedModel

logger = logging.getLogger(__name__)

_STEP = 8
_TOKENS = 64  # rows of a product's tile: a mixed step of fewer takes as long


@runtime_checkable
class DevicePlanning(Protocol):
    """Interface of attention backends whose plans can be part of graphs."""

    def plan_on_device(self, inputs: StepInputs) -> AttentionPlan:
        """Prepares a step by its shapes alone: values may change before each run of the plan.

        Tokens with a negative slot are padding, whose results are never read; those past
        `query_start[-1]` are of no sequence.
        """
        ...


def ladder(max_num_seqs: int) -> list[int]:
    """Returns the sizes of decode steps, ascending: 1, 2, 4, and multiples of 8."""
    sizes = {1, 2, 4, *range(_STEP, max_num_seqs, _STEP)}
    return sorted({size for size in sizes if size < max_num_seqs} | {max_num_seqs})


def mixed_ladder(max_tokens: int) -> list[int]:
    """Returns the sizes of mixed steps, ascending: padding is at most 63 tokens of up to 1,024, and
    an eighth of more."""
    sizes, size = list[int](), 0
    while size < max_tokens:
        size = min(max_tokens, size + max(_TOKENS, 1 << max(0, size.bit_length() - 4)))
        sizes.append(size)
    return sizes


def graph_sizes(*, max_num_seqs: int, max_tokens: int) -> list[GraphSize]:
    """Returns the sizes of graphs of steps with at most so many sequences.

    Args:
        max_tokens: of a mixed step; 0 for graphs of decode steps alone.
    """
    decode = [GraphSize(size, size, is_decode=True) for size in ladder(max_num_seqs)]
    mixed = [
        GraphSize(size, min(size, max_num_seqs), is_decode=False)
        for size in mixed_ladder(max_tokens)
    ]
    return decode + mixed


class NoGraphs:
    """Graphs of a model that has none: every step is launched kernel by kernel."""

    def __len__(self) -> int:
        return 0

    def capture(self) -> None:
        """Records all sizes, or none where that cannot be: then steps stay eager.

        Raises MemoryError in one of several processes.
        """

    def forget(self) -> None:
        """Drops the graphs, so that the pool that they work on may change."""

    def measure(self) -> int:
        """Returns how much memory all graphs will take, by recording the two largest of each kind.

        Raises MemoryError in one of several processes.
        """
        return 0

    def size_for(self, batch: Batch) -> GraphSize | None:
        """Returns the smallest graph that has room for the batch; None if there is none."""
        return None

    def run(self, batch: Batch, size: GraphSize) -> tuple[Tensor | None, Int64Array | None]:
        """Enqueues a batch in the graph that `size_for` has named.

        Returns:
            [*, vocab_size] float32 logits until the next run, and the index that each draw has in
            them; None for logits without a draw, and for an index that counts the draws.
        """
        raise NotImplementedError


class StepGraphs(NoGraphs):
    """The graphs of one model, over the pool that its attention is bound to."""

    def __init__(
        self,
        loaded: LoadedModel,
        attention: DevicePlanning,
        recorder: GraphRecorder,
        *,
        pinned: PinnedBuffers,
        drawn: Tensor,
        sizes: Sequence[GraphSize],
    ) -> None:
        """Makes none yet.

        Args:
            drawn: int64, the draws of the step before, which `fed_from` are indices into.
        """
        self._model = loaded.model
        self._attention = attention
        self._recorder = recorder
        self._buffers = GraphBuffers(
            sizes=sizes,
            max_blocks=-(-loaded.info.max_model_len // loaded.block_size),
            device=drawn.device,
            pinned=pinned,
        )
        self._drawn = drawn
        self._decode = [size for size in sizes if size.is_decode]
        self._mixed = [size for size in sizes if not size.is_decode]
        self._num_ranks = loaded.group.size  # record the same graphs at the same time
        max_seqs = max(size.num_seqs for size in sizes)
        self._logits = torch.zeros(max_seqs, loaded.info.vocab_size, device=drawn.device)
        self._graphs: dict[GraphSize, Graph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(self) -> None:
        self.forget()
        try:
            for size in (*reversed(self._mixed), *reversed(self._decode)):
                self._graphs[size] = self._capture(size)
        except (NotCapturable, torch.OutOfMemoryError) as error:
            self.forget()
            self._refuse_alone(error)
            reason = str(error).partition("\n")[0]
            logger.warning("no graphs, steps are launched kernel by kernel: %s", reason)
        else:
            logger.info(
                "%d graphs recorded, of up to %d decodes and %d tokens",
                len(self),
                self._decode[-1].num_seqs,
                max((size.num_tokens for size in self._mixed), default=0),
            )

    def forget(self) -> None:
        self._graphs.clear()

    def measure(self) -> int:
        before = self._recorder.used_bytes()
        total, taken = 0, 0
        try:
            for sizes in (self._mixed, self._decode):
                grown = list[int]()
                for size in sizes[: -1 - min(2, len(sizes)) : -1]:
                    self._graphs[size] = self._capture(size)
                    grown.append(max(0, self._recorder.used_bytes() - before - taken))
                    taken += grown[-1]
                if grown:
                    total += grown[0] + (len(sizes) - 1) * grown[-1]
        except (NotCapturable, torch.OutOfMemoryError) as error:
            self._refuse_alone(error)
            return 0  # `capture` will meet it again, and do without
        finally:
            self.forget()
        return total

    def _refuse_alone(self, error: Exception) -> None:
        """Raises MemoryError if others may wait for this process in a collective."""
        if self._num_ranks > 1 and isinstance(error, torch.OutOfMemoryError):
            raise MemoryError(
                "no memory to record graphs; set enforce_eager, or lower gpu_memory_utilization"
            ) from None

    def size_for(self, batch: Batch) -> GraphSize | None:
        if not self._graphs or batch.prompt_rows is not None:
            return None
        if batch.block_tables.shape[1] > self._buffers.max_blocks:
            return None
        num_tokens, num_seqs = len(batch.token_ids), len(batch.context_lens)
        sizes = self._decode if num_tokens == num_seqs else self._mixed
        index = bisect_left(sizes, num_tokens, key=lambda size: size.num_tokens)
        if index == len(sizes) or sizes[index].num_seqs < num_seqs:
            return None
        return sizes[index]

    def run(self, batch: Batch, size: GraphSize) -> tuple[Tensor | None, Int64Array | None]:
        drawing, row_of = batch.rows.drawing_tokens()
        num_logits = len(drawing)
        if size.is_decode:  # has the logits of all tokens
            num_logits, index = len(batch.token_ids), batch.rows.token_index
            row_of = None if np.array_equal(index, np.arange(num_logits)) else index
        self._buffers.fill(batch, size, None if size.is_decode else drawing)
        self._graphs[size].replay()
        return (self._logits[:num_logits], row_of) if len(drawing) else (None, None)

    def _capture(self, size: GraphSize) -> Graph:
        self._buffers.pad(size)  # what older batches left there points into a pool that is gone
        return self._recorder.capture(lambda: self._work(size))

    def _work(self, size: GraphSize) -> None:
        inputs, columns = self._buffers.inputs(size), self._buffers.columns(size)
        token_ids = fed_tokens(inputs.token_ids, columns.fed_from, self._drawn)
        plan = self._attention.plan_on_device(inputs)
        hidden = self._model.forward(token_ids, inputs.positions, ForwardContext(plan))
        if not size.is_decode:
            hidden = hidden.index_select(0, columns.drawing)
        self._logits[: size.num_seqs].copy_(self._model.logits(hidden))


def fed_tokens(token_ids: Tensor, fed_from: Tensor, drawn: Tensor) -> Tensor:
    """Returns the token ids, with draws of the step before where `fed_from` has an index."""
    return torch.where(fed_from >= 0, drawn[fed_from.clamp(min=0)], token_ids)
