"""Counts what the weights of a GGUF file take in memory."""

from collections import Counter
from collections.abc import Iterable
from math import prod

from signalbox_worker.files.checkpoints.gguf.blocks import (
    held_as,
    held_bytes,
    is_held_as_stored,
)
from signalbox_worker.files.checkpoints.gguf.reader import GGUFTensor
from signalbox_worker.files.checkpoints.weight_sizes import WeightSizes, num_table_values


def is_runnable(stored: GGUFTensor) -> bool:
    """Says whether native programs can run a tensor's blocks, or those of each expert in it."""
    return len(stored.shape) > 1 and held_as(stored.type) is not None


def _held_bytes(stored: GGUFTensor) -> int:
    return held_bytes(stored.num_bytes, stored.type) if is_runnable(stored) else stored.num_bytes


def gguf_sizes(stored_tensors: Iterable[GGUFTensor], *, is_native: bool) -> WeightSizes:
    """Counts tensors of a GGUF file and its parts, of a family with native programs or without."""
    tensors = list(stored_tensors)
    types = Counter(stored.type for stored in tensors if is_runnable(stored))
    commonest = next((kind for kind, _ in types.most_common(1)), None)
    changed = None if commonest is None or is_held_as_stored(commonest) else commonest
    held = None if changed is None else held_as(changed)
    values = {stored.name: prod(stored.shape) for stored in tensors}
    return WeightSizes(
        num_values=sum(values.values()),
        num_table_values=num_table_values(values),
        stored_bytes=sum(_held_bytes(stored) for stored in tensors),
        is_half=True,
        is_native=is_native,
        block_type="" if commonest is None else commonest.name,
        held_type="" if held is None else held.name,
    )
