"""When full collections of garbage are put off, and for how long."""

import gc
from collections.abc import Iterator

import pytest

from signalbox_rpc.limits import garbage_collection
from signalbox_rpc.limits.garbage_collection import without_full_collections

OFTEN = (100, 1, 1)
FULL = 2


@pytest.fixture(autouse=True)
def _collects_often() -> Iterator[None]:
    before = gc.get_threshold()
    gc.freeze()
    gc.collect()  # a quarter as many new objects as this one leaves start the next
    gc.set_threshold(*OFTEN)
    yield
    assert gc.get_threshold() == OFTEN  # outside of all blocks as before
    gc.set_threshold(*before)
    gc.unfreeze()


def collected() -> set[int]:
    """Returns the generations that are collected while there come to be many objects."""
    seen: set[int] = set()

    def note(_: str, info: dict[str, int]) -> None:
        seen.add(info["generation"])

    gc.callbacks.append(note)
    objects: list[list[int]] = [[] for _ in range(20_000)]
    gc.callbacks.remove(note)
    assert objects
    return seen


def test_young_objects_are_collected_within_a_block_and_old_ones_are_not() -> None:
    assert FULL in collected()
    with without_full_collections():
        assert collected() == {0, 1}
        with without_full_collections():
            assert collected() == {0, 1}
        assert collected() == {0, 1}
    assert FULL in collected()


def test_a_block_that_fails_ends() -> None:
    with pytest.raises(KeyError), without_full_collections():
        raise KeyError
    assert FULL in collected()


def test_blocks_that_follow_each_other_put_it_off_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with without_full_collections():
        monkeypatch.setattr(garbage_collection, "MAX_PUT_OFF_S", -1.0)
        assert collected() == {0, 1}
        with without_full_collections():  # too late
            assert FULL in collected()
        assert FULL in collected()
    with without_full_collections():
        assert collected() == {0, 1}
