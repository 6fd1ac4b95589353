"""Checks of the parts of a step that need no sequence known before.

Everything is refused at the door, with a status that names the field, its value and what is
allowed; nothing has been changed by then.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.cache_groups import NO_BLOCK, keep_all
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_contract.sampling_params import find_fault
from signalbox_contract.step import NewSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that the steps of a lease are checked against."""

    model: ModelInfo
    capacity: WorkerCapacity
    num_gpu_blocks: int
    adapter_slots: Mapping[str, int]
    """Slots of the adapters that are loaded, by SHA-256."""

    @property
    def max_blocks(self) -> int:
        """Entries of the table of the longest sequence."""
        return -(-self.model.max_model_len // self.capacity.block_size) * len(self.capacity.groups)

    def check_blocks(self, field: str, blocks: NDArray[np.integer] | Sequence[int]) -> None:
        """Checks that entries of a table are blocks, or none where a group may keep none."""
        lowest = 0 if keep_all(self.capacity.groups) else NO_BLOCK
        check_range(field, blocks, self.num_gpu_blocks, lowest=lowest)

    def most_tokens(self, num_seqs: int) -> int:
        """Returns the most tokens of a step: a sequence alone may be as long as it is whole."""
        pooling, most = self.model.pooling, self.capacity.max_num_batched_tokens
        if num_seqs == 1 and pooling is not None and pooling.is_bidirectional:
            return max(most, self.model.max_model_len)
        return most


def check_range(
    field: str, values: NDArray[np.integer] | Sequence[int], end: int, *, lowest: int = 0
) -> None:
    """Checks that all values are in [lowest, end)."""
    array = np.asarray(values)
    if not array.size:
        return
    for value in (int(array.min()), int(array.max())):
        if not lowest <= value < end:
            raise InvalidArgument(field, value, f"in [{lowest}, {end})")


def check_new(new: NewSequence, limits: Limits) -> None:
    """Checks all of a new sequence that does not depend on the sequences known."""
    where = "new_groups.sequences"
    model, capacity = limits.model, limits.capacity
    num_tokens, block_size = len(new.token_ids), capacity.block_size
    end = new.num_computed_tokens + new.num_new_tokens
    for field, value, low, high in (
        ("token_ids", num_tokens, 1, model.max_model_len),
        ("num_computed_tokens", new.num_computed_tokens, 0, num_tokens - 1),
        ("num_new_tokens", new.num_new_tokens, 1, num_tokens - new.num_computed_tokens),
        ("num_samples", new.num_samples, 0, capacity.max_num_seqs),
        ("block_table", len(new.block_table), -(-end // block_size) * len(capacity.groups), None),
        ("block_table", len(new.block_table), 1, limits.max_blocks),
    ):
        _check_between(f"{where}.{field}", value, low, high)
    _check_between("new_groups.num_prompt_tokens", new.num_prompt_tokens, 1, num_tokens)
    check_range(f"{where}.token_ids", new.token_ids, model.vocab_size)
    limits.check_blocks(f"{where}.block_table", new.block_table)
    _check_windows(new, limits)
    if new.adapter and new.adapter not in limits.adapter_slots:
        raise InvalidArgument("new_groups.adapter", new.adapter, "an adapter that is loaded")
    where = "new_groups.sampling_params"
    if fault := find_fault(new.params, vocab_size=model.vocab_size, where=where):
        raise fault


def _check_windows(new: NewSequence, limits: Limits) -> None:
    """Checks that a new sequence has a block wherever its first step reads or writes K and V."""
    groups, size = limits.capacity.groups, limits.capacity.block_size
    end = -(-(new.num_computed_tokens + new.num_new_tokens) // size)
    for column, group in enumerate(groups):
        if group.state_blocks:
            continue
        first = group.first_block(new.num_computed_tokens, block_size=size)
        entries = list(new.block_table[column :: len(groups)])
        if NO_BLOCK in entries[first:end]:
            allowed = f"blocks of group {column} for the rows [{first}, {end})"
            raise InvalidArgument("new_groups.sequences.block_table", NO_BLOCK, allowed)


def _check_between(field: str, value: float, low: float, high: float | None) -> None:
    allowed = f"at least {low}" if high is None else f"in [{low}, {high}]"
    if not low <= value <= (math.inf if high is None else high):
        raise InvalidArgument(field, value, allowed)
