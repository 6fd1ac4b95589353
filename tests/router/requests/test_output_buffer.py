"""When updates leave and what they hold, whatever the rhythm in which tokens come."""

from typing import Any
from unittest.mock import sentinel

from hypothesis import given
from hypothesis import strategies as st

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.updates import Timings, Usage
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.output_buffer import Delivery, OutputBuffer, OutputKind
from signalbox_router.requests.request_output import (
    Delta,
    Echo,
    End,
    Finish,
    FinishReason,
    ToolCallDelta,
)

END = End(Usage(1, 1, 0), Timings(0, 0, 0, 0))
LENGTH = Finish(FinishReason.LENGTH)


def make_delta(index: int, *token_ids: int, finish: Finish | None = None) -> Delta:
    text = "".join(map(chr, token_ids))
    return Delta(index=index, text=text, token_ids=list(token_ids), finish=finish)


def run(buffer: OutputBuffer, *deltas: Delta) -> list[list[Delta]]:
    """Pushes one delta after the other, the end after the last; returns the deltas sent."""
    pushed = [Update(sentinel.request, [delta], None) for delta in deltas]
    sent = [buffer.push(update) for update in [*pushed, Update(sentinel.request, [], END)]]
    assert [update.end for update in sent if update is not None][-1] is END
    return [update.deltas for update in sent if update is not None]


def test_without_wishes_every_delta_leaves_as_it_comes() -> None:
    deltas = [make_delta(0, 97), make_delta(1, 98, 99), make_delta(0, 100, finish=LENGTH)]
    assert run(OutputBuffer(Delivery()), *deltas) == [[delta] for delta in deltas] + [[]]


def test_an_interval_holds_tokens_back_but_not_the_first_nor_an_ending() -> None:
    buffer = OutputBuffer(Delivery(stream_interval=3))
    updates = run(buffer, *(make_delta(0, i) for i in range(97, 105)))
    assert [[d.token_ids for d in update] for update in updates] == [
        [[97]],
        [[98, 99, 100]],
        [[101, 102, 103]],
        [[104]],
    ]
    ending = run(
        OutputBuffer(Delivery(stream_interval=9)), make_delta(0, 1), make_delta(0, 2, finish=LENGTH)
    )
    assert ending[1] == [make_delta(0, 2, finish=LENGTH)]


def test_an_interval_counts_the_new_tokens_of_cumulative_updates() -> None:
    buffer = OutputBuffer(Delivery(kind=OutputKind.CUMULATIVE, stream_interval=3))
    updates = run(buffer, *(make_delta(0, i) for i in range(97, 105)))
    assert [len(delta.token_ids) for update in updates for delta in update] == [1, 4, 7, 8]


def test_cumulative_updates_hold_everything_so_far() -> None:
    buffer = OutputBuffer(Delivery(kind=OutputKind.CUMULATIVE))
    updates = run(buffer, make_delta(0, 97), make_delta(1, 98), make_delta(0, 99, finish=LENGTH))
    assert updates == [
        [make_delta(0, 97)],
        [make_delta(1, 98)],
        [make_delta(0, 97, 99, finish=LENGTH)],
        [],
    ]


def test_a_final_update_holds_everything_at_the_end() -> None:
    buffer = OutputBuffer(Delivery(kind=OutputKind.FINAL_ONLY))
    deltas = [make_delta(0, 97), make_delta(1, 98, finish=LENGTH), make_delta(0, 99, finish=LENGTH)]
    assert run(buffer, *deltas) == [
        [make_delta(0, 97, 99, finish=LENGTH), make_delta(1, 98, finish=LENGTH)]
    ]


def test_an_echo_comes_once_before_each_sequence() -> None:
    for kind, number in ((OutputKind.DELTA, 1), (OutputKind.CUMULATIVE, 3)):
        buffer = OutputBuffer(Delivery(kind=kind), Echo("Hi", [72, 105]))
        first, second, other, _ = run(
            buffer, make_delta(0, 97), make_delta(0, 98, 99), make_delta(1, 100)
        )
        assert first == [make_delta(0, 72, 105, 97)]
        assert second[0].token_ids[-2:] == [98, 99]
        assert other == [make_delta(1, 72, 105, 100)]
        assert len(second[0].token_ids) == (2 if number == 1 else 5)


def test_tool_calls_grow_as_the_text_does() -> None:
    def make_call(arguments: str, **first: Any) -> Delta:
        call = ToolCallDelta(index=0, arguments=arguments, **first)
        return Delta(index=0, text="A", token_ids=[1], tool_calls=[call])

    deltas = [make_call("", id="a", name="f"), make_call('{"x"'), make_call(": 1}")]
    whole = ToolCallDelta(index=0, id="a", name="f", arguments='{"x": 1}')
    for kind in (OutputKind.CUMULATIVE, OutputKind.FINAL_ONLY):
        *_, last = filter(None, run(OutputBuffer(Delivery(kind=kind)), *deltas))
        assert last[0].tool_calls == [whole]


def test_reasoning_that_follows_text_keeps_its_place_where_that_is_asked_for() -> None:
    texts, thoughts = ("", "A", "B", "", "C"), ("X", "", "", "Y", "")
    pieces = [Delta(index=0, text=a, reasoning=b) for a, b in zip(texts, thoughts, strict=True)]
    for keeps, said in ((True, [("X", "AB"), ("Y", "C")]), (False, [("XY", "ABC")])):
        delivery = Delivery(kind=OutputKind.FINAL_ONLY, keeps_order=keeps)
        *_, last = filter(None, run(OutputBuffer(delivery), *pieces))
        assert [(delta.reasoning, delta.text) for delta in last] == said


def test_prompt_logprobs_leave_with_the_first_update() -> None:
    prompt_logprobs = [TokenLogprobs(-1.0, 1, [], [])]
    buffer = OutputBuffer(Delivery(kind=OutputKind.FINAL_ONLY))
    assert buffer.push(Update(sentinel.request, [make_delta(0, 97)], None, prompt_logprobs)) is None
    final = buffer.push(Update(sentinel.request, [make_delta(0, 98, finish=LENGTH)], END))
    assert final is not None
    assert final.prompt_logprobs == prompt_logprobs


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=30),
    st.integers(1, 5),
    st.sampled_from(OutputKind),
)
def test_nothing_is_lost_or_repeated(
    rhythm: list[tuple[int, int]], interval: int, kind: OutputKind
) -> None:
    numbers = iter(range(200, 1000))
    deltas = [make_delta(i, *(next(numbers) for _ in range(count))) for i, count in rhythm]
    updates = run(OutputBuffer(Delivery(kind=kind, stream_interval=interval)), *deltas)
    for index in range(3):
        sent = [token for delta in deltas if delta.index == index for token in delta.token_ids]
        mine = [delta for update in updates for delta in update if delta.index == index]
        got = mine[-1:] if kind is OutputKind.CUMULATIVE else mine
        assert [token for delta in got for token in delta.token_ids] == sent
        assert "".join(delta.text for delta in got) == "".join(map(chr, sent))
