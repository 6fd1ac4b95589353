"""Models with windows or states: groups migrate, and prefixes come from workers and stores."""

from collections.abc import Sequence
from typing import Any

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, NO_BLOCK, CacheGroup
from signalbox_contract.sections.store_moves import StoreMoves
from signalbox_scheduler.kv.prefix_cache import names_of_parts
from signalbox_scheduler.kv.prefix_rows import PrefixRows
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.transfers.prefix_lookup import MAX_LOOKUPS
from tests.scheduler_svc.fake_store import Block, FakeStore
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import make_request, outputs
from tests.scheduler_svc.transfers.test_loading import Server
from tests.scheduler_svc.transfers.test_migrations import NUM_TURNS, Pair, num_recomputed

LONG = list(range(11, 61))  # twelve blocks and two tokens


def window(size: int) -> CacheGroup:
    return CacheGroup(kind="window", window=size)


DIVISIONS = {
    "full": (FULL_GROUP,),
    "two full": (FULL_GROUP, FULL_GROUP),
    "windows": (FULL_GROUP, window(9), window(6)),
    "windows alone": (window(9), window(17)),
    "states": (FULL_GROUP, CacheGroup(kind="state", state_blocks=3)),
    "windows and states": (window(9), FULL_GROUP, CacheGroup(kind="state", state_blocks=5)),
}


def num_blocks_of(division: tuple[CacheGroup, ...], *, num_rows: int) -> int:
    """Returns the blocks of a prefix, without what is behind windows, with all of its state."""
    num_of_state = sum(max(0, one.state_blocks - 1) for one in division)
    return PrefixRows(division, block_size=4).num_entries(0, num_rows) + num_of_state


class WindowPair(Pair):
    """Two workers that run groups with windows."""

    def __init__(self, division: str, **fields: Any) -> None:
        self.division = DIVISIONS[division]
        options = {"num_gpu_blocks": 160, "num_cpu_blocks": 160, "groups": self.division}
        super().__init__(**{**options, **fields})


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("num_sequences", [1, 3])
@pytest.mark.parametrize("num_steps", [2, 3, 9])
def test_a_running_group_goes_to_another_worker_with_the_blocks_that_it_has(
    division: str, num_sequences: int, num_steps: int
) -> None:
    pair = WindowPair(division)
    group = pair.start(LONG, num_steps=num_steps, n=num_sequences, max_tokens=40)
    pair.hand_over(group)
    pair.assert_right()
    assert num_recomputed(group) == 0
    (event,) = (one for one in group.timeline.events if one.kind is EventKind.MIGRATED)
    num_rows = -(-(len(LONG) + 40) // 4)
    assert 0 < event.num_blocks <= num_rows * len(pair.division) * num_sequences
    assert (pair.of(0).num_out, pair.of(1).num_in) == (1, 1)


def test_blocks_behind_a_window_do_not_go_with_a_group() -> None:
    pair = WindowPair("windows")
    group = pair.start(LONG, num_steps=4, max_tokens=40)
    pair.hand_over(group)
    (event,) = (one for one in group.timeline.events if one.kind is EventKind.MIGRATED)
    table = group.sequences[0].block_table
    assert table.count(NO_BLOCK) >= 2 * 9
    num_rows = len(table) // 3
    # Of each window what a token sees when the migration begins, and what comes meanwhile.
    assert event.num_blocks <= num_rows + 2 * 8
    pair.assert_right()


def test_a_prompt_goes_on_at_another_worker_while_its_windows_move() -> None:
    pair = WindowPair("windows", max_num_batched_tokens=8)
    group = pair.start(list(range(100)), num_steps=2, max_tokens=10)
    assert group.times.first_token is None
    assert pair.begin(group)
    for _ in range(4 * NUM_TURNS):
        pair.turn()
    assert pair.of(1).num_in == 1
    pair.assert_right()
    assert num_recomputed(group) == 0


@pytest.mark.parametrize("num_turns", range(1, 8))
def test_a_lost_source_leaves_nothing_behind(num_turns: int) -> None:
    pair = WindowPair("windows")
    group = pair.start(LONG, num_steps=4, max_tokens=40)
    assert pair.begin(group)
    for _ in range(num_turns):
        pair.turn()
    pair.lose(0)
    pair.assert_right()


def test_a_drained_worker_hands_its_groups_over() -> None:
    pair = WindowPair("windows")
    groups = [pair.start(LONG, num_steps=3, max_tokens=40) for _ in range(3)]
    pair.loops[0].scheduler.drain()
    for _ in range(4 * NUM_TURNS):
        pair.turn()
    assert (pair.of(0).num_out, pair.of(1).num_in) == (3, 3)
    pair.assert_right()
    assert sum(map(num_recomputed, groups)) == 0


@pytest.mark.parametrize("division", DIVISIONS)
def test_a_prefix_comes_from_another_worker_without_what_is_behind_windows(division: str) -> None:
    workers = WindowPair(division)
    workers.run_on(0, LONG)
    workers.loops[0].scheduler.drain()
    group = workers.add(LONG)
    workers.finish(1, 0)
    assert outputs(group) == [expected(LONG, num_tokens=2)]
    assert group.num_cached_tokens == 48
    assert workers.store(1).num_borrowed == num_blocks_of(workers.division, num_rows=12)


@pytest.mark.parametrize(("num_cpu_blocks", "most"), [(24, 3), (80, 20)])
def test_a_prefix_comes_in_parts_that_both_pools_have_room_for(
    num_cpu_blocks: int, most: int
) -> None:
    workers = WindowPair("windows", num_cpu_blocks=num_cpu_blocks)
    workers.run_on(0, LONG)
    workers.loops[0].scheduler.drain()
    group = workers.add(LONG)
    workers.finish(1, 0)
    assert outputs(group) == [expected(LONG, num_tokens=2)]
    assert group.num_cached_tokens >= 4 * most // 3


def test_a_prefix_ends_where_the_other_worker_has_what_windows_need() -> None:
    workers = WindowPair("windows")
    first = workers.run_on(0, LONG)
    blocks = workers.loops[0].scheduler.blocks
    names = blocks.prefix_hashes(first.sequences[0], 0, 12 * 3)
    gone = blocks.gpu.find(names[10 * 3 + 1])
    assert gone is not None
    blocks.gpu.retract(gone)
    workers.loops[0].scheduler.drain()
    group = workers.add(LONG)
    workers.finish(1, 0)
    assert outputs(group) == [expected(LONG, num_tokens=2)]
    assert group.num_cached_tokens == 40


class WindowServer(Server):
    """A worker with windows and a store, which may have been written by one before it."""

    def __init__(
        self, division: str, kept: dict[bytes, Block] | None = None, **fields: Any
    ) -> None:
        options = {"num_gpu_blocks": 160, "num_cpu_blocks": 160, "groups": DIVISIONS[division]}
        super().__init__(kept, **{**options, **fields})


def filled(division: str, **fields: Any) -> WindowServer:
    """Returns a new worker with the store of one that has served LONG twice."""
    first = WindowServer(division)
    first.run(LONG)
    first.run(LONG)
    return WindowServer(division, first.kept, **fields)


def name_of(server: WindowServer, group: SequenceGroup, *, row: int, column: int) -> bytes:
    width = server.scheduler.blocks.num_groups
    index = row * width + column
    return server.scheduler.blocks.prefix_hashes(group.sequences[0], index, index + 1)[0]


@pytest.mark.parametrize("division", DIVISIONS)
def test_a_prefix_comes_from_the_store_after_a_restart(division: str) -> None:
    server = filled(division)
    group = server.run(LONG)
    assert group.num_cached_tokens == 48
    assert server.store.num_fetched == num_blocks_of(DIVISIONS[division], num_rows=12)


@pytest.mark.parametrize("division", ["windows", "windows alone"])
@pytest.mark.parametrize(
    ("gone", "num_rows"), [([11], 11), ([9], 12), ([10], 10), ([11, 10, 8], 8), (range(12), 0)]
)
def test_a_prefix_in_a_store_ends_where_windows_have_what_they_need(
    division: str, gone: Sequence[int], num_rows: int
) -> None:
    """A window of 9 tokens needs two blocks before the token that is computed next."""
    server = filled(division)
    column = [one.window for one in DIVISIONS[division]].index(9)
    probe = make_request(LONG)
    for row in gone:
        del server.kept[name_of(server, probe, row=row, column=column)]
    group = server.run(LONG)
    assert group.num_cached_tokens == 4 * num_rows


@pytest.mark.parametrize("division", ["states", "windows and states"])
@pytest.mark.parametrize("lacks_parts", [False, True])
def test_a_state_is_found_at_a_store_many_rows_before_the_end(
    division: str, lacks_parts: bool
) -> None:
    prompt = list(range(110))
    positions = (40, 60) if lacks_parts else (60,)
    first = WindowServer(division)
    for _ in range(2):
        first.add(prompt, snapshot_positions=positions)
        first.finish()
    probe = make_request(prompt)
    column = len(DIVISIONS[division]) - 1
    for row in range(15, 27):
        first.kept.pop(name_of(first, probe, row=row, column=column), None)
    if lacks_parts:
        name = name_of(first, probe, row=14, column=column)
        del first.kept[names_of_parts(name, 3)[2]]
    server = WindowServer(division, first.kept)
    group = server.run(prompt)
    assert group.num_cached_tokens == (40 if lacks_parts else 60)
    assert outputs(group) == [expected(prompt, num_tokens=2)]


def test_a_store_that_lacks_what_windows_need_everywhere_is_not_asked_for_ever() -> None:
    server = filled("windows", max_num_batched_tokens=16)
    probe = make_request(LONG)
    for row in range(12):
        del server.kept[name_of(server, probe, row=row, column=1)]
    finds = []
    begin = server.store.begin

    def counting(moves: StoreMoves | None) -> None:
        finds.extend(moves.finds if moves is not None else ())
        begin(moves)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FakeStore, "begin", lambda _, moves: counting(moves))
        group = server.run(LONG)
    assert group.num_cached_tokens == 0
    assert len(finds) == MAX_LOOKUPS


def test_a_later_turn_of_a_conversation_is_found_at_a_store_with_windows() -> None:
    server = WindowServer("windows")
    history = LONG.copy()
    for _ in range(3):
        group = server.add(history, max_tokens=9)
        server.finish()
        ended_at = len(history) + 9
        history += [*outputs(group)[0], *range(70, 75)]
    group = WindowServer("windows", server.kept).run(history)
    assert group.num_cached_tokens == (ended_at - 1) // 4 * 4
