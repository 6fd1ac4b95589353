"""The inputs of recorded steps, in memory that never moves."""

from itertools import product

import pytest
import torch

from signalbox_worker.batch.input_transfer import PinnedBuffers
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.runner.executors.graph_inputs import GraphBuffers, GraphSize


@pytest.mark.parametrize(("tokens", "seqs"), [*product([5, 8], [1, 2, 5])])
def test_columns_are_aligned_whatever_the_size(tokens: int, seqs: int) -> None:
    """Triton compiles a kernel again for a pointer that is not divisible by 16."""
    cpu = torch.device("cpu")
    pinned = PinnedBuffers(cpu, streams_of(cpu).compute)
    size = GraphSize(tokens, seqs, is_decode=tokens == seqs)
    buffers = GraphBuffers(sizes=[size], max_blocks=3, device=cpu, pinned=pinned)
    *tensors, most_queries = buffers.inputs(size)
    assert [tensor.data_ptr() % 16 for tensor in tensors] == [0] * len(tensors)
    assert [len(tensor) for tensor in tensors] == [tokens] * 3 + [seqs + 1] + [seqs] * 2
    assert most_queries == (1 if tokens == seqs else tokens)
