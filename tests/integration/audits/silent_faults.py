"""Faults that no checksum sees: each changes what a worker computes, and nothing else.

A fault stays planted while its context lasts. It is in one worker, or in the scheduler of one.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from signalbox_contract.sections.block_moves import BlockMapping, BlockMoves
from signalbox_contract.step import Step
from signalbox_scheduler.kv import prefix_cache
from signalbox_worker.batch.batch import Batch, BatchOutput
from tests.integration.stack import RunningWorker

BLOCK_SIZE = 16
HEAD_SIZE = 16


class Faulty(NamedTuple):
    """The worker that a fault is planted in."""

    worker: RunningWorker
    patch: pytest.MonkeyPatch
    """Undone at the end of the fault."""

    @property
    def runner(self) -> Any:
        return self.worker.worker._runner


Plant = Callable[[Faulty], None]


def in_batches(change: Callable[[Batch], None]) -> Plant:
    """Changes each batch before it is computed."""

    def plant(faulty: Faulty) -> None:
        execute = faulty.runner.execute

        def execute_wrong(batch: Batch) -> BatchOutput:
            change(batch)
            output: BatchOutput = execute(batch)
            return output

        faulty.patch.setattr(faulty.runner, "execute", execute_wrong)

    return plant


def in_moves(change: Callable[[BlockMoves], BlockMoves]) -> Plant:
    """Changes the copies of blocks that a step makes."""

    def plant(faulty: Faulty) -> None:
        apply = faulty.runner.apply

        def apply_wrong(step: Step) -> int:
            moved: int = apply(replace(step, block_moves=change(step.block_moves)))
            return moved

        faulty.patch.setattr(faulty.runner, "apply", apply_wrong)

    return plant


# What a batch reads and writes


def exchange_slots(batch: Batch) -> None:
    """The last tokens of two sequences are written to each other's slots."""
    last = batch.query_start[1:] - 1
    if len(last) > 1:
        batch.slot_mapping = batch.slot_mapping.copy()
        batch.slot_mapping[last[:2]] = batch.slot_mapping[last[1::-1]]


def write_before(batch: Batch) -> None:
    """Tokens are written over those before them in their block."""
    batch.slot_mapping = batch.slot_mapping - (batch.slot_mapping % BLOCK_SIZE > 0)


def read_first_block_of_the_next(batch: Batch) -> None:
    """Each sequence reads the next one's first block in place of its own."""
    batch.block_tables = batch.block_tables.copy()
    batch.block_tables[:, 0] = np.roll(batch.block_tables[:, 0], 1)


def shift_mask(batch: Batch) -> None:
    """Tokens of sequences that decode see the slot behind theirs, and are rotated so."""
    num_new = np.diff(batch.query_start)
    batch.positions = batch.positions + np.repeat(num_new == 1, num_new)


def read_row_of_the_next(batch: Batch) -> None:
    """Each draw is from another sequence's logits."""
    batch.rows.token_index = np.roll(batch.rows.token_index, 1)


def take_mask_of_the_next(batch: Batch) -> None:
    """Each draw may have the tokens that another one's request allows."""
    allowed = batch.rows.allowed
    if allowed is not None:
        masks = np.roll(allowed.mask_of_row, 1)
        batch.rows.allowed = allowed._replace(mask_of_row=masks)


def take_seed_of_the_next(batch: Batch) -> None:
    batch.rows.seed = np.roll(batch.rows.seed, 1)


def draw_as_one_later(batch: Batch) -> None:
    """Random numbers are those of the position behind each draw's."""
    batch.rows.position = batch.rows.position + 1


def count_the_draft_behind(batch: Batch) -> None:
    """Penalties count a token more than is known: the draft behind each draw, or what the last
    refused one has left there."""
    found = batch.rows.penalties
    if found is not None:
        tokens = np.ascontiguousarray(found.tokens[:, 1:])
        batch.rows.penalties = found._replace(tokens=tokens, num_prompt=found.num_prompt - 1)


def take_adapter_of_the_next(batch: Batch) -> None:
    """Tokens of the first two adapters are computed by each other's."""
    if batch.adapters is not None:
        other = np.array([1, 0], dtype=np.int32)
        batch.adapters = np.where(batch.adapters < 0, batch.adapters, other[batch.adapters])


def read_state_of_the_next(batch: Batch) -> None:
    """Sequences that decode go on in each other's states."""
    states = batch.states
    if states is not None and (states.reads[:, 0] >= 0).all():
        batch.states = replace(states, reads=np.roll(states.reads, 1, axis=0))


def report_token_of_the_next(faulty: Faulty) -> None:
    execute = faulty.runner.execute

    def execute_wrong(batch: Batch) -> BatchOutput:
        output: BatchOutput = execute(batch)
        output.token_ids = np.roll(output.token_ids, 1)
        return output

    faulty.patch.setattr(faulty.runner, "execute", execute_wrong)


def exchange_scales(faulty: Faulty) -> None:
    """Codes of K and V get the scales of another head, in the first layer's last tokens."""
    execute, pool = faulty.runner.execute, faulty.runner.pools.gpu_pool
    num_codes = 2 * HEAD_SIZE * BLOCK_SIZE  # of K and V; two scales of each token are behind them

    def execute_wrong(batch: Batch) -> BatchOutput:
        output: BatchOutput = execute(batch)
        for slot in batch.slot_mapping.tolist():
            block, offset = divmod(slot, BLOCK_SIZE)
            heads = pool[block].reshape(-1, num_codes + 8 * BLOCK_SIZE)
            scales = heads[:, num_codes:].copy().view(np.float32).reshape(-1, 2, BLOCK_SIZE)
            scales[:2, :, offset] = scales[1::-1, :, offset]
            heads[:, num_codes:] = scales.reshape(len(heads), -1).view(np.uint8)
        return output

    faulty.patch.setattr(faulty.runner, "execute", execute_wrong)


def flip_weights(faulty: Faulty) -> None:
    _flip_weights(faulty.runner, faulty.patch)


def flip_weights_of_rank_1(faulty: Faulty) -> None:
    """The other rank, which draws, has the right ones."""
    _flip_weights(faulty.runner.followers[0].shard, faulty.patch)


def _flip_weights(runner: Any, patch: pytest.MonkeyPatch) -> None:
    """A few weights of a rank have another bit."""
    execute, packed = runner.execute, runner.executor.program._arena.packed[1]
    words = np.ctypeslib.as_array((ctypes.c_uint32 * 64).from_address(packed.address))

    def execute_wrong(batch: Batch) -> BatchOutput:
        words[:] ^= np.uint32(0x0040_0000)
        try:
            output: BatchOutput = execute(batch)
            return output
        finally:
            words[:] ^= np.uint32(0x0040_0000)

    patch.setattr(runner, "execute", execute_wrong)


def leave_states_unsettled(faulty: Faulty) -> None:
    """A run leaves the state behind the token before its drafts."""
    faulty.patch.setattr(faulty.runner, "settle", lambda _: None)


# What is copied


def copy_the_block_before(moves: BlockMoves) -> BlockMoves:
    """A copy map is off by one."""
    src = np.maximum(moves.copy.src - 1, 0)
    return replace(moves, copy=BlockMapping(src, moves.copy.dst))


def return_to_the_next_slot(moves: BlockMoves) -> BlockMoves:
    """Swapped blocks come back to each other's slots."""
    return replace(moves, swap_in=BlockMapping(moves.swap_in.src, np.roll(moves.swap_in.dst, 1)))


def leave_states_of_forks(faulty: Faulty) -> None:
    """A fork goes on in what its blocks of a state held before."""
    apply, worker = faulty.runner.apply, faulty.worker.worker

    def apply_wrong(step: Step) -> int:
        assert worker._lease is not None
        blocks = worker._lease.table._rows.state_blocks
        is_stale = np.isin(step.block_moves.copy.dst, blocks[blocks >= 0])
        copies = BlockMapping(*(column[~is_stale] for column in step.block_moves.copy))
        moved: int = apply(replace(step, block_moves=replace(step.block_moves, copy=copies)))
        return moved

    faulty.patch.setattr(faulty.runner, "apply", apply_wrong)


def find_prefixes_of_other_adapters(faulty: Faulty) -> None:
    """Blocks are named without the adapter that has computed them."""
    root_hash = prefix_cache.root_hash

    def root_hash_wrong(*, tenant: str, cache_salt: str, adapter: str = "") -> bytes:
        return root_hash(tenant=tenant, cache_salt=cache_salt)

    faulty.patch.setattr(prefix_cache, "root_hash", root_hash_wrong)


def read_neighbours_of_the_store(faulty: Faulty) -> None:
    """A store returns what it keeps of another key, unharmed."""
    store = faulty.runner.transfers.store.store
    read, keys = store.read, list(store._blocks)
    neighbour = dict(zip(keys, keys[1:] + keys[:1], strict=True))

    def read_wrong(key: bytes, into: memoryview) -> bool:
        done: bool = read(neighbour.get(key, key), into)
        return done

    faulty.patch.setattr(store, "read", read_wrong)


def send_neighbours(faulty: Faulty) -> None:
    """Blocks that go to another worker are in another order."""
    transfers = faulty.runner.transfers
    opened = transfers.open

    def open_wrong(
        move_id: int, keys: Sequence[bytes], cpu_blocks: Sequence[int], *, with_peer: bool = False
    ) -> Any:
        blocks = [*cpu_blocks[1:], cpu_blocks[0]] if with_peer else cpu_blocks
        return opened(move_id, keys, blocks, with_peer=with_peer)

    faulty.patch.setattr(transfers, "open", open_wrong)
