"""Decode steps as graphs: the whole forward pass, and the logits, by one launch.

The launches of a decode step's kernels cost the host more than the device needs to run them, as
vLLM and SGLang found too. There is a graph for each size of a ladder, all in one pool of memory,
the largest recorded first, so that the others fit into what it has left. A batch takes the next
larger one, and its other rows are padding.
"""

import logging
from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gpu_worker.batch.batch import Batch
from gpu_worker.device.graphs import Graph, GraphRecorder, NotCapturable
from gpu_worker.device.input_transfer import StepInputs
from gpu_worker.executors.graph_inputs import DecodeBuffers
from gpu_worker.layers import AttentionPlan, ForwardContext
from gpu_worker.models import Model

logger = logging.getLogger(__name__)

_STEP = 8


@runtime_checkable
class DevicePlanning(Protocol):
    """Interface of attention backends whose plans can be part of graphs."""

    def plan_on_device(self, inputs: StepInputs) -> AttentionPlan:
        """Prepares a step by its shapes alone: values may change before each run of the plan.

        Tokens with a negative slot are padding, whose results are never read.
        """
        ...


def ladder(max_num_seqs: int) -> list[int]:
    """Returns the sizes of graphs, ascending: 1, 2, 4, and multiples of 8."""
    sizes = {1, 2, 4, *range(_STEP, max_num_seqs, _STEP)}
    return sorted({size for size in sizes if size < max_num_seqs} | {max_num_seqs})


class DecodeGraphs:
    """The graphs of one model, over the pool that its attention is bound to."""

    def __init__(
        self,
        *,
        model: Model,
        attention: DevicePlanning,
        recorder: GraphRecorder,
        buffers: DecodeBuffers,
        drawn: Tensor,
        vocab_size: int,
        sizes: Sequence[int],
        num_ranks: int = 1,
    ) -> None:
        """Makes none yet.

        Args:
            drawn: int64, the draws of the step before, which `fed_from` are indices into.
            num_ranks: that record the same graphs at the same time.
        """
        self._model = model
        self._attention = attention
        self._recorder = recorder
        self._buffers = buffers
        self._drawn = drawn
        self._sizes = sizes
        self._num_ranks = num_ranks
        self._logits = torch.zeros(sizes[-1], vocab_size, device=drawn.device)
        self._graphs: dict[int, Graph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def capture(self) -> None:
        """Records all sizes, or none where that cannot be: then steps stay eager.

        Raises MemoryError on one of several ranks.
        """
        self.forget()
        self._buffers.pad()  # what older batches left there points into a pool that is gone
        try:
            for size in reversed(self._sizes):
                self._graphs[size] = self._capture(size)
        except (NotCapturable, torch.OutOfMemoryError) as error:
            self.forget()
            self._refuse_alone(error)
            reason = str(error).partition("\n")[0]
            logger.warning("no graphs, decode steps are launched kernel by kernel: %s", reason)
        else:
            logger.info("%d graphs recorded, of 1 to %d rows", len(self), self._sizes[-1])

    def forget(self) -> None:
        """Drops the graphs, so that the pool that they work on may change."""
        self._graphs.clear()

    def measure(self) -> int:
        """Returns how much memory all graphs will take, by recording the two largest.

        Raises MemoryError on one of several ranks.
        """
        self._buffers.pad()
        before = self._recorder.used_bytes()
        taken = list[int]()
        try:
            for size in self._sizes[: -1 - min(2, len(self._sizes)) : -1]:
                self._graphs[size] = self._capture(size)
                taken.append(self._recorder.used_bytes() - before - sum(taken))
        except (NotCapturable, torch.OutOfMemoryError) as error:
            self._refuse_alone(error)
            return 0  # `capture` will meet it again, and do without
        finally:
            self.forget()
        return max(0, taken[0]) + (len(self._sizes) - 1) * max(0, taken[-1])

    def _refuse_alone(self, error: Exception) -> None:
        """Raises MemoryError on one of several ranks, as others may wait in a collective for it."""
        if self._num_ranks > 1 and isinstance(error, torch.OutOfMemoryError):
            raise MemoryError(
                "no memory to record graphs; set enforce_eager, or lower gpu_memory_utilization"
            ) from None

    def serves(self, batch: Batch) -> bool:
        """Returns whether there is a graph for the batch: one token each of few enough
        sequences."""
        num_seqs = len(batch.context_lens)
        return bool(
            self._graphs
            and len(batch.token_ids) == num_seqs <= self._sizes[-1]
            and batch.prompt_rows is None
            and batch.block_tables.shape[1] <= self._buffers.max_blocks
        )

    def run(self, batch: Batch) -> Tensor:
        """Enqueues a batch for which `serves` is True.

        Returns:
            [num_seqs, vocab_size] float32 logits of all tokens, until the next run.
        """
        num_seqs = len(batch.context_lens)
        size = self._sizes[bisect_left(self._sizes, num_seqs)]
        self._buffers.fill(batch, size)
        self._graphs[size].replay()
        return self._logits[:num_seqs]

    def _capture(self, size: int) -> Graph:
        return self._recorder.capture(lambda: self._work(size))

    def _work(self, size: int) -> None:
        inputs, fed_from = self._buffers.inputs(size), self._buffers.fed_from(size)
        token_ids = fed_tokens(inputs.token_ids, fed_from, self._drawn)
        plan = self._attention.plan_on_device(inputs)
        hidden = self._model.forward(token_ids, inputs.positions, ForwardContext(plan))
        self._logits[:size].copy_(self._model.logits(hidden))


def fed_tokens(token_ids: Tensor, fed_from: Tensor, drawn: Tensor) -> Tensor:
    """Returns the token ids, with draws of the step before where `fed_from` has an index."""
    return torch.where(fed_from >= 0, drawn[fed_from.clamp(min=0)], token_ids)
