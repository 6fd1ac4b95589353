"""Divides a model's layers into pipeline stages, so that the slowest stage is as fast as can be.

A layer counts by the bytes of its tensors in the checkpoint, and so does the head. The head
computes one row of a prompt, but each row of a decode: a stage counts by its share in that of the
two of which it has more. The embedding, of which a step reads a row for each token, does not count.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from signalbox_worker.config import ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.opened_model import OpenedModel

_LAYER = re.compile(r"(?:^|\.)(\d+)\.")
_TABLES = re.compile(r"embed|wte|wpe")
"""Names of tensors before the layers; what follows them is the head's."""


def stage_layers(opened: OpenedModel, parallel: ParallelConfig) -> StageLayers:
    """Returns the layers of a rank's stage. Raises ModelError if there is no such division."""
    return stages_of(opened, parallel)[parallel.stage]


def stages_of(opened: OpenedModel, parallel: ParallelConfig) -> list[StageLayers]:
    """Returns the layers of all stages. Raises ModelError if there is no such division."""
    total, num_stages = opened.shape.num_layers, parallel.pipeline_parallel_size
    if num_stages == 1:
        return [StageLayers(0, total, total)]
    if not opened.spec.has_stages:
        raise ModelError(
            f"pipeline_parallel_size is {num_stages}, but {opened.spec.architecture} is computed in"
            " one stage alone; use 1: a smaller model or a stronger quantisation takes less memory,"
            " and several --workers take more requests"
        )
    if num_stages > total:
        raise ModelError(
            f"pipeline_parallel_size is {num_stages}, but the model has {total} layers; use at most"
            " as many stages"
        )
    counts = parallel.layer_partition or divided(*_bytes(opened), num_stages=num_stages)
    if len(counts) != num_stages or sum(counts) != total or min(counts) < 1:
        raise ModelError(
            f"pipeline_layer_partition is {','.join(map(str, counts))}; it must be {num_stages} "
            f"numbers of at least 1 with the sum {total}, the model's layers"
        )
    ends = [0, *accumulate(counts)]
    return [StageLayers(start, stop, total) for start, stop in pairwise(ends)]


def divided(layers: Sequence[int], head: int, *, num_stages: int) -> tuple[int, ...]:
    """Returns the number of layers of each stage.

    Args:
        layers: sizes of the layers.
        head: size of what the last stage computes after its layers.
    """
    total = sum(layers)
    sums = np.concatenate([[0], np.cumsum(layers)])
    sizes = (sums - sums[:, None]).astype(np.float64)  # of layers [i, j)
    sizes[np.tril_indices(len(sums))] = math.inf
    largest = sizes[0]  # of the stages so far, which end before layer j
    choices: list[NDArray[np.intp]] = []
    for stage in range(1, num_stages):
        if stage == num_stages - 1 and head:  # its share in a decode, in the unit of `sizes`
            sizes = np.maximum(sizes, (sizes + head) * (total / (total + head)))
        larger = np.maximum(largest[:, None], sizes)
        choices.append(larger.argmin(axis=0))
        largest = larger.min(axis=0)
    ends = [len(layers)]
    for choice in reversed(choices):
        ends.insert(0, int(choice[ends[0]]))
    return tuple(end - start for start, end in pairwise([0, *ends]))


def _bytes(opened: OpenedModel) -> tuple[list[int], int]:
    """Returns the bytes of the layers and of the head; made-up layers are alike."""
    layers = [0] * opened.shape.num_layers
    if isinstance(opened.source, DummySource):
        return [1] * len(layers), 0
    embedding = head = 0
    tensors = opened.source.stored()
    for name, tensor in tensors.items():
        found = _LAYER.search(name)
        if found is not None and int(found[1]) < len(layers):
            layers[int(found[1])] += _size(tensor)
        elif _TABLES.search(name):
            embedding += _size(tensor)
        else:
            head += _size(tensor)
    return layers, head + (0 if _has_head(tensors) else embedding)


def _has_head(tensors: Mapping[str, StoredTensor]) -> bool:
    return any(name.endswith("lm_head.weight") for name in tensors)


def _size(tensor: StoredTensor) -> int:
    """Returns bytes, taking two for each value that no block holds."""
    if tensor.parts:
        return sum(map(_size, tensor.parts.values()))
    if tensor.blocks is None:
        return 2 * math.prod(tensor.shape)
    kind, (rows, columns) = tensor.blocks.type, tensor.blocks.shape
    return rows * -(-columns // kind.block_size) * kind.block_bytes
