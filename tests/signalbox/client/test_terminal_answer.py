"""The speed of an answer counts the tokens that came in the time measured."""

import pytest

from signalbox.client.terminal_answer import TimedAnswer
from signalbox_client import Answer, Chunk, Delta, Usage


@pytest.mark.parametrize("numbers", [(1, 1, 1), (4, 2), (1, 5), (3,)])
def test_tokens_of_the_first_chunk_have_come_before_the_time_that_is_measured(
    numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1, 9))
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    usage = Usage(prompt_tokens=1, completion_tokens=sum(numbers), cached_tokens=0)
    timed = TimedAnswer(Answer(usage=usage), started=0.0)
    for number in numbers:
        delta = Delta(index=0, text="a", token_ids=(1,) * number, finish_reason=None)
        timed.record(Chunk(request_id="r", deltas=(delta,), usage=None))
    rest = numbers[1:]
    assert timed.tokens_per_second == (sum(rest) / len(rest) if rest else None)
    assert timed.time_to_first_token_s == 1.0
