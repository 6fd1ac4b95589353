"""Bytes are bounded over seconds, and over days of UTC."""

from gpu_worker.kv_disk.write_limit import SECONDS_PER_DAY, WriteLimit


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_kept_with_a_burst_of_some_seconds() -> None:
    clock = Clock(1000.0)
    limit = WriteLimit(bytes_per_s=10.0, bytes_per_day=1e9, clock=clock)
    assert sum(limit.take(10) for _ in range(100)) == 4
    clock.now += 2
    assert sum(limit.take(10) for _ in range(100)) == 2
    clock.now += 1e6
    assert sum(limit.take(10) for _ in range(100)) == 4


def test_a_block_larger_than_the_burst_is_written_when_its_time_has_come() -> None:
    clock = Clock(1000.0)
    limit = WriteLimit(bytes_per_s=1.0, bytes_per_day=1e9, clock=clock)
    assert not limit.take(100)
    clock.now += 99
    assert limit.take(100)
    assert not limit.take(1)


def test_a_day_is_bounded_and_the_next_begins_at_midnight() -> None:
    clock = Clock(10 * SECONDS_PER_DAY - 5.0)
    limit = WriteLimit(bytes_per_s=1e9, bytes_per_day=100, clock=clock)
    limit.continue_day(60)
    assert [limit.take(30), limit.take(30), limit.take(10)] == [True, False, True]
    assert (limit.written_today, limit.num_refused) == (100, 1)
    clock.now += 6
    assert limit.take(100)
    assert limit.written_today == 100


def test_a_clock_that_goes_back_gives_nothing() -> None:
    clock = Clock(1000.0)
    limit = WriteLimit(bytes_per_s=10.0, bytes_per_day=1e9, clock=clock)
    assert limit.take(40)
    clock.now -= 100
    assert not limit.take(10)
