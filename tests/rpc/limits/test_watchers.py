"""Watchers that read slowly, and how many there may be."""

import pytest

from signalbox_contract.errors import ResourceExhausted, Unavailable
from signalbox_rpc.limits.watchers import MAX_WAITING, MAX_WATCHERS, Watcher, Watchers


async def read(watcher: Watcher[int]) -> list[int]:
    """Returns the frames that wait for a watcher, which ends."""
    frames = [frame for _, frame in watcher._frames]
    stream = watcher.frames()
    assert [await anext(stream) for _ in frames] == frames
    watcher.end(Unavailable("over"))
    with pytest.raises(Unavailable, match="over"):
        await anext(stream)
    return frames


@pytest.mark.parametrize("num_missed", [1, 30])
async def test_a_slow_watcher_gets_a_full_picture_in_place_of_what_it_missed(
    num_missed: int,
) -> None:
    watcher = Watcher[int]()
    watcher.put("a", -1)  # before any picture
    watcher.put("a", 0, is_full=True)
    watcher.put("b", 50, is_full=True)
    for number in range(1, MAX_WAITING + num_missed):
        watcher.put("a", number)
    assert watcher.follows("b")
    assert not watcher.follows("a")
    watcher.put("a", 100, is_full=True)
    watcher.put("a", 101)
    assert await read(watcher) == [50, 100, 101]


async def test_a_watcher_that_keeps_up_gets_each_frame_in_order() -> None:
    watcher = Watcher[int]()
    watcher.put("a", 0, is_full=True)
    for number in range(1, MAX_WAITING):
        watcher.put("a", number)
    assert await read(watcher) == list(range(MAX_WAITING))


def test_the_number_of_watchers_is_bounded() -> None:
    watchers, contexts = Watchers[int](), []
    for _ in range(MAX_WATCHERS):
        contexts.append(watchers.joined())
        contexts[-1].__enter__()
    with pytest.raises(ResourceExhausted, match="16 clients watch already"), watchers.joined():
        pass
    contexts.pop().__exit__(None, None, None)
    with watchers.joined() as watcher:
        assert watcher in list(watchers)
    assert len(watchers) == MAX_WATCHERS - 1
