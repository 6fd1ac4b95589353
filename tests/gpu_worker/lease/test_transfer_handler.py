"""Transfers between the CPU pool and a store: which begin, beside steps, and how each ends."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_contract.sections.store_moves import (
    BlockSource,
    Clear,
    ClearMark,
    Export,
    Fetch,
    Find,
    MoveResult,
    Store,
    StoreMoves,
    decode_store_moves,
    encode_store_moves,
)
from signalbox_contract.step import Step, decode_step, encode_step
from signalbox_contract.step_result import StepResult
from signalbox_worker.lease.execution_thread import Unfinished
from signalbox_worker.lease.lease import Lease
from signalbox_worker.runner.simulated.simulated_executor import POISON
from tests.gpu_worker.builders import make_lease, make_mapping, make_new, make_runner, make_step
from tests.waiting import EVENT_S, wait_until

HASHES = [bytes([number]) * 16 for number in range(4)]
MOVES = StoreMoves(
    cancels=[1, 2],
    clears=[Clear(3, None), Clear(4, ""), Clear(5, "a", ClearMark(b"i" * 16, 7))],
    finds=[Find(6, HASHES), Find(12, HASHES[1:], seeks=True)],
    fetches=[
        Fetch(7, HASHES[:2], [3, 1]),
        Fetch(8, [], []),
        Fetch(10, HASHES[:1], [4], BlockSource("host:1", "worker.one", b"t" * 16)),
    ],
    stores=[Store(9, HASHES[2:], [0, 2], "tenant")],
    exports=[Export(11, HASHES[:1], [5], b"u" * 16, "worker.two", 1_000_000)],
)


class Moves:
    """A lease of a simulated worker whose store has four blocks, and its steps so far."""

    def __init__(self) -> None:
        self.runner = make_runner(num_store_blocks=4)
        self.lease: Lease = make_lease(self.runner)
        self.num_steps = 0

    def close(self) -> None:
        """Ends the threads of the store."""
        self.runner.close()

    def step(self, moves: StoreMoves | None = None, **fields: object) -> StepResult:
        self.num_steps += 1
        step = make_step(self.num_steps, store_moves=moves, **fields)
        result = self.lease.execute(decode_step(encode_step(step)), arrived_ns=0)
        assert isinstance(result, StepResult)
        return result

    def until_ended(self, moves: StoreMoves, **fields: object) -> dict[int, MoveResult]:
        """Begins moves, and returns their ends by number."""
        wanted = set(moves.move_ids)
        ended = {one.move_id: one for one in self.step(moves, **fields).moves}
        ends_at = time.monotonic() + EVENT_S
        while not wanted <= ended.keys():
            assert time.monotonic() < ends_at, f"{wanted - ended.keys()} have not ended"
            for one in self.step().moves:
                assert one.move_id not in ended, "a move ends twice"
                ended[one.move_id] = one
        assert self.step().moves == ()
        return ended


@pytest.fixture
def moves() -> Iterator[Moves]:
    begun = Moves()
    yield begun
    begun.close()


def test_a_section_is_what_its_message_decodes_to() -> None:
    assert decode_store_moves(encode_store_moves(MOVES)) == MOVES
    assert MOVES.counts == {"blocks_fetched": 3, "blocks_stored": 2, "blocks_exported": 1}
    assert sorted(MOVES.move_ids) == list(range(3, 13))


@pytest.mark.parametrize(
    ("kind", "fields", "field"),
    [
        ("finds", {"hashes": b"a" * 15}, "store_moves.finds.hashes"),
        ("fetches", {"hashes": b"a" * 16}, "store_moves.fetches.cpu_blocks"),
        ("stores", {"cpu_blocks": b"\0" * 4}, "store_moves.stores.cpu_blocks"),
        ("fetches", {"source": {"ticket": b"t" * 15}}, "store_moves.fetches.source.ticket"),
        ("clears", {"mark": {"issuer": b"i" * 15}}, "store_moves.clears.mark.issuer"),
        ("exports", {"ticket": b"t" * 17, "lasts_ns": 1}, "store_moves.exports.ticket"),
        ("exports", {"ticket": b"t" * 16}, "store_moves.exports.lasts_ns"),
    ],
)
def test_columns_that_do_not_match_are_refused(
    kind: str, fields: dict[str, Any], field: str
) -> None:
    message = encode_store_moves(StoreMoves())
    getattr(message, kind).add(**fields)
    with pytest.raises(InvalidArgument, match=field):
        decode_store_moves(message)


def test_blocks_that_are_stored_are_found_and_fetched_as_they_were(moves: Moves) -> None:
    kv = moves.runner
    new = make_new(1, list(range(8)), [4, 5])
    moves.step(new=[new])
    stored = moves.until_ended(
        StoreMoves(stores=[Store(1, HASHES[:2], [0, 3], "")]), swap_out=make_mapping({4: 0, 5: 3})
    )
    assert stored[1].num_blocks == 2
    assert stored[1].num_bytes == 2 * kv.profile().block_bytes
    found = moves.until_ended(StoreMoves(finds=[Find(2, HASHES), Find(3, HASHES[2:])]))
    assert (found[2].num_blocks, found[3].num_blocks) == (2, 0)
    fetched = moves.until_ended(StoreMoves(fetches=[Fetch(4, HASHES[:3], [1, 2, 0])]))
    assert (fetched[4].num_blocks, fetched[4].failed) == (2, "")
    assert kv.simulation.cpu_kv[[1, 2]].tolist() == kv.simulation.gpu_kv[[4, 5]].tolist()
    assert POISON not in kv.simulation.cpu_kv[[1, 2]]


def test_a_cleared_store_has_nothing(moves: Moves) -> None:
    moves.step(swap_out=make_mapping({0: 0, 1: 1}))
    stores = [Store(1, HASHES[:1], [0], "a"), Store(2, HASHES[1:2], [1], "b")]
    moves.until_ended(StoreMoves(stores=stores))
    moves.until_ended(StoreMoves(clears=[Clear(3, "a")]))
    finds = [Find(4, HASHES[:1]), Find(5, HASHES[1:2])]
    assert [one.num_blocks for one in moves.until_ended(StoreMoves(finds=finds)).values()] == [0, 1]
    moves.until_ended(StoreMoves(clears=[Clear(6, None)]))
    finds = [Find(7, HASHES[1:2])]
    assert moves.until_ended(StoreMoves(finds=finds))[7].num_blocks == 0


def test_a_move_that_is_called_off_ends_once(moves: Moves) -> None:
    moves.step(StoreMoves(fetches=[Fetch(1, HASHES, [0, 1, 2, 3])]))
    ended = moves.until_ended(StoreMoves(cancels=[1, 77], finds=[Find(2, HASHES)]))
    assert 2 in ended
    assert moves.step(StoreMoves(cancels=[1])).moves == ()


def test_a_step_that_ends_after_its_lease_takes_no_end_of_the_next_one() -> None:
    runner = make_runner(num_store_blocks=4, stages=(1, 1))
    first = make_lease(runner)
    step = first.execute(make_step(1, new=[make_new(1, [1, 2], [0])]), arrived_ns=0)
    assert isinstance(step, Unfinished)
    first.revoke()
    runner.init_cache_engine(num_gpu_blocks=8, num_cpu_blocks=4)
    second = make_lease(runner)
    find = make_step(1, store_moves=StoreMoves(finds=[Find(1, HASHES)]))
    results = [second.execute(find, arrived_ns=0)]  # which may have its end already
    wait_until(lambda: all(one.is_ended for one in runner.transfers._pending.values()))
    assert step.finish().moves == ()
    results.append(second.execute(make_step(2), arrived_ns=0))
    ended = [one.move_id for result in results for one in cast(StepResult, result).moves]
    assert ended == [1]
    runner.close()


SWAPS = {"swap_out": make_mapping({0: 1}), "swap_in": make_mapping({2: 0})}
REFUSED = {
    "fetches past the CPU pool": StoreMoves(fetches=[Fetch(2, HASHES[:1], [4])]),
    "stores from before the CPU pool": StoreMoves(stores=[Store(2, HASHES[:1], [-1], "")]),
    "fetches two blocks to one": StoreMoves(fetches=[Fetch(2, HASHES[:2], [3, 3])]),
    "fetches to what is swapped out": StoreMoves(fetches=[Fetch(2, HASHES[:1], [1])]),
    "fetches to what is swapped in": StoreMoves(fetches=[Fetch(2, HASHES[:1], [2])]),
    "fetches to what is stored": StoreMoves(
        fetches=[Fetch(2, HASHES[:1], [3])], stores=[Store(3, HASHES[1:2], [3], "")]
    ),
    "looks nothing up": StoreMoves(finds=[Find(2, [])]),
    "fetches nothing": StoreMoves(fetches=[Fetch(2, [], [])]),
    "stores nothing": StoreMoves(stores=[Store(2, [], [], "")]),
    "repeats a number": StoreMoves(finds=[Find(1, HASHES)]),
    "has one number twice": StoreMoves(finds=[Find(2, HASHES), Find(2, HASHES)]),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_step_of_refused_moves_changes_nothing(moves: Moves, refused: StoreMoves) -> None:
    lease = moves.lease
    moves.step(StoreMoves(finds=[Find(1, HASHES)]))
    step = make_step(2, new=[make_new(1, [1, 2], [0])], store_moves=refused, **SWAPS)
    with pytest.raises(InvalidArgument, match="store_moves"):
        lease.execute(step, arrived_ns=0)
    lease.table.check()
    assert len(lease.table) == 0
    lease.execute(replace(step, store_moves=None), arrived_ns=0)
    assert len(lease.table) == 1


@pytest.mark.parametrize(
    "moves", [StoreMoves(exports=MOVES.exports), StoreMoves(fetches=MOVES.fetches[2:])]
)
def test_moves_from_and_to_others_are_refused_where_none_is_reached(moves: StoreMoves) -> None:
    lease = make_lease(make_runner(num_store_blocks=4))
    with pytest.raises(FailedPrecondition, match="with others"):
        lease.execute(Step(epoch=7, step_id=1, store_moves=moves), arrived_ns=0)


def test_moves_without_a_store_are_refused() -> None:
    with pytest.raises(FailedPrecondition, match="store"):
        make_lease().execute(
            Step(epoch=7, step_id=1, store_moves=StoreMoves(finds=MOVES.finds)), arrived_ns=0
        )
