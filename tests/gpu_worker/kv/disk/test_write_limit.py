"""Bytes are bounded over days of UTC."""

from signalbox_worker.kv.disk.disk_space import SECONDS_PER_DAY, WriteLimit


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_a_day_is_bounded_and_the_next_begins_at_midnight() -> None:
    clock = Clock(10 * SECONDS_PER_DAY - 5.0)
    limit = WriteLimit(bytes_per_day=100, clock=clock)
    limit.continue_day(60)
    assert [limit.take(30), limit.take(30), limit.take(10)] == [True, False, True]
    assert limit.written_today == 100
    clock.now += 6
    assert limit.take(100)
    assert limit.written_today == 100
