"""Workers whose models have windows: groups migrate, and prefixes come from others and stores."""

from typing import Any

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, NO_BLOCK, CacheGroup
from signalbox_scheduler.requests.timeline import EventKind
from tests.scheduler_svc.transfers.test_migrations import NUM_TURNS, Pair, num_recomputed

LONG = list(range(11, 61))  # twelve blocks and two tokens


def window(size: int) -> CacheGroup:
    return CacheGroup(kind="window", window=size)


DIVISIONS = {
    "full": (FULL_GROUP,),
    "two full": (FULL_GROUP, FULL_GROUP),
    "windows": (FULL_GROUP, window(9), window(6)),
    "windows alone": (window(9), window(17)),
}


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
