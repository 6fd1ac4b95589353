"""Counts what the weights of a GGUF file take in memory."""

from collections import Counter
from collections.abc import Iterable
from math import prod

from signalbox_kernels.storage import QUANTISED
from signalbox_worker.files.checkpoints.gguf.reader import GGUFTensor
from signalbox_worker.files.checkpoints.weight_sizes import WeightSizes, num_table_values


def is_runnable(stored: GGUFTensor) -> bool:
    """Says whether native programs can run a tensor's blocks, or those of each expert in it."""
    return len(stored.shape) > 1 and int(stored.type) in QUANTISED


def gguf_sizes(stored_tensors: Iterable[GGUFTensor], *, is_native: bool) -> WeightSizes:
    """Counts tensors of a GGUF file and its parts, of a family with native programs or without."""
    tensors = list(stored_tensors)
    types = Counter(stored.type.name for stored in tensors if is_runnable(stored))
    values = {stored.name: prod(stored.shape) for stored in tensors}
    return WeightSizes(
        num_values=sum(values.values()),
        num_table_values=num_table_values(values),
        stored_bytes=sum(stored.num_bytes for stored in tensors),
        is_half=True,
        is_native=is_native,
        block_type=next((name for name, _ in types.most_common(1)), ""),
    )
