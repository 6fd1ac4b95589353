import asyncio
import dataclasses
import functools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from signalbox_contract.errors import ResourceExhausted, Unavailable
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.updates import Timings, Usage
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.prompt.tokenization.detokenizer import MARK
from signalbox_router.requests.active_request import ActiveRequest, Update
from signalbox_router.requests.request_output import (
    Delta,
    End,
    Finish,
    FinishReason,
)
from tests.router.fakes import EOS, IM_END, IM_START, bytewise_ids, ids_of, make_tokenizer, token
from tests.waiting import EVENT_S

TOKENIZER = make_tokenizer()
LENGTH = Finish(FinishReason.LENGTH)
END = End(Usage(7, 1000, 3), Timings(1, 2, 3, 4))


class FakeScheduler:
    """Records what requests tell the scheduler."""

    def __init__(self) -> None:
        self.stopped: list[tuple[int, int, int]] = []
        self.aborted: list[int] = []

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        self.stopped.append((handle, index, keep_tokens))

    def abort(self, handle: int) -> None:
        self.aborted.append(handle)


def make_request(
    *,
    scheduler: FakeScheduler | None = None,
    max_unread_tokens: int = 1000,
    kept_token_ids: frozenset[int] = frozenset(),
    **params: Any,
) -> ActiveRequest:
    params.setdefault("stop_token_ids", (token(EOS),))
    names = {field.name for field in dataclasses.fields(SamplingParams)} & params.keys()
    sampling = SamplingParams(**{name: params.pop(name) for name in names})
    return ActiveRequest(
        handle=1,
        request_id="r",
        prompt_token_ids=ids_of("Hi"),
        params=GenerationParams(sampling=sampling, max_tokens=100, **params),
        tokenizer=TOKENIZER,
        scheduler=scheduler or FakeScheduler(),
        arrived_ns=0,
        max_unread_tokens=max_unread_tokens,
        kept_token_ids=kept_token_ids,
    )


async def read_next(request: ActiveRequest) -> Update:
    return await asyncio.wait_for(request.next_update(), EVENT_S)


async def read_delta(request: ActiveRequest) -> Delta:
    (delta,) = (await read_next(request)).deltas
    return delta


async def test_tokens_that_wait_come_out_as_one_delta_for_each_sequence() -> None:
    request = make_request(n=2)
    for token_id in ids_of("The capital"):
        request.add_tokens(1, [token_id], [])
    request.add_tokens(0, ids_of("is"), [])
    update = await read_next(request)
    assert [(delta.index, delta.text) for delta in update.deltas] == [(1, "The capital"), (0, "is")]


async def test_the_last_update_counts_what_the_client_got() -> None:
    request = make_request()
    request.add_tokens(0, ids_of("Paris"), [])
    request.end_sequence(0, LENGTH)
    request.end(END)
    update = await read_next(request)
    assert update.deltas[0].finish == LENGTH
    assert update.end is not None
    assert update.end.usage == Usage(7, len(ids_of("Paris")), 3)
    assert update.end.time_to_first_token_ns is not None


@pytest.mark.parametrize("late", [True, False])
async def test_a_stop_token_has_no_text_even_if_its_finish_comes_later(late: bool) -> None:
    request = make_request(stop_token_ids=(token("!"), token(EOS)))
    ids = [*ids_of("Paris"), token("!")]
    request.add_tokens(0, ids, [])
    first = await read_delta(request) if late else None
    request.end_sequence(0, Finish(FinishReason.STOP_TOKEN, stop_token_id=token("!")))
    last = await read_delta(request)
    text = (first.text if first else "") + last.text
    token_ids = (first.token_ids if first else []) + last.token_ids
    assert (text, token_ids) == ("Paris", ids)
    assert last.finish == Finish(FinishReason.STOP_TOKEN, stop_token_id=token("!"))


async def test_a_stop_token_has_text_when_asked_for() -> None:
    request = make_request(stop_token_ids=(token("!"),), include_stop_str_in_output=True)
    request.add_tokens(0, [*ids_of("Paris"), token("!")], [])
    assert (await read_delta(request)).text == "Paris!"


async def test_an_eos_that_the_client_listed_is_a_stop_token_when_eos_is_ignored() -> None:
    request = make_request(ignore_eos=True)
    request.add_tokens(0, [token(EOS)], [])
    request.end_sequence(0, Finish(FinishReason.STOP, stop_token_id=token(EOS)))
    finish = (await read_delta(request)).finish
    assert finish is not None
    assert finish.reason is FinishReason.STOP_TOKEN


async def test_a_stop_string_ends_its_branch_alone_and_drops_what_follows() -> None:
    scheduler = FakeScheduler()
    request = make_request(scheduler=scheduler, n=2, stop=("bc",))
    request.add_tokens(0, bytewise_ids("abcd"), [])
    request.add_tokens(1, bytewise_ids("ab"), [])
    first, second = (await read_next(request)).deltas
    assert (first.text, first.token_ids) == ("a", bytewise_ids("abc"))
    assert first.finish == Finish(FinishReason.STOP_STRING, stop="bc")
    assert (second.text, second.token_ids, second.finish) == ("a", bytewise_ids("ab"), None)
    assert scheduler.stopped == [(1, 0, 3)]

    request.add_tokens(0, bytewise_ids("more"), [])
    request.add_tokens(1, bytewise_ids("x"), [])
    assert (await read_delta(request)).text == "bx"

    request.end_sequence(0, Finish(FinishReason.STOP_STRING))
    request.end_sequence(1, LENGTH)
    request.end(END)
    update = await read_next(request)
    assert [delta.finish for delta in update.deltas] == [LENGTH]
    assert update.end is not None
    assert update.end.usage.completion_tokens == 3 + 3
    assert scheduler.stopped == [(1, 0, 3)]


async def test_a_stop_string_is_included_when_asked_for() -> None:
    request = make_request(stop=("bc",), include_stop_str_in_output=True)
    request.add_tokens(0, bytewise_ids("abcd"), [])
    assert (await read_delta(request)).text == "abc"


async def test_a_stop_string_in_the_last_tokens_wins_over_the_length() -> None:
    scheduler = FakeScheduler()
    request = make_request(scheduler=scheduler, stop=("bc",))
    request.add_tokens(0, bytewise_ids("abcd"), [])
    request.end_sequence(0, LENGTH)
    delta = await read_delta(request)
    assert delta.finish is not None
    assert (delta.finish.stop, delta.token_ids) == ("bc", bytewise_ids("abc"))
    assert scheduler.stopped == []  # the scheduler has ended it already


async def test_stop_strings_do_not_count_before_min_tokens() -> None:
    request = make_request(stop=("b",), min_tokens=3)
    request.add_tokens(0, bytewise_ids("abb"), [])
    delta = await read_delta(request)
    assert (delta.text, len(delta.token_ids)) == ("ab", 3)


TOKENS = ("a", "b", ".", "|", IM_START, IM_END)


@given(
    st.lists(st.sampled_from(TOKENS), max_size=16),
    st.lists(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=3), min_size=1, max_size=2),
    st.sampled_from([frozenset(), frozenset({token(IM_END)})]),
)
@example(["a", ".", IM_START, "b"], [[".", IM_START]], frozenset())
@example(["a", IM_START, IM_END, "b"], [[IM_START, IM_END]], frozenset())
@example(["a", "b", IM_START], [[IM_START]], frozenset())
def test_stop_strings_with_special_tokens_stop_as_if_these_were_shown(
    tokens: list[str], stops: list[list[str]], kept: frozenset[int]
) -> None:
    """The reference searches the text with all tokens for strings that hold a hidden one, and the
    visible text for the others; of several the first that is complete wins, then the longest."""
    strings = ["".join(stop) for stop in stops]
    hidden = {IM_START, IM_END} - {TOKENIZER.vocabulary.entry(one) for one in kept}
    texts = ["" if one in hidden else one for one in tokens]

    def end_of(stop: str) -> int:
        """Returns the number of tokens until the string is complete, or one more than all."""
        pieces = tokens if any(one in stop for one in hidden) else texts
        ends = (n for n in range(len(tokens) + 1) if stop in "".join(pieces[:n]))
        return next(ends, len(tokens) + 1)

    end, _, stop = min((end_of(stop), -len(stop), stop) for stop in strings)
    request = make_request(stop=tuple(strings), kept_token_ids=kept)
    request.add_tokens(0, [token(one) for one in tokens], [])
    request.end_sequence(0, LENGTH)
    (delta,) = request.read()
    if end > len(tokens):
        assert (delta.text.replace(MARK, ""), delta.finish) == ("".join(texts), LENGTH)
        return
    assert delta.finish == Finish(FinishReason.STOP_STRING, stop=stop)
    assert len(delta.token_ids) == end
    pieces = tokens if any(one in stop for one in hidden) else texts
    shown, _, _ = "".join(pieces).partition(stop)
    assert delta.text.replace(MARK, "") == functools.reduce(
        lambda text, one: text.replace(one, ""), hidden, shown
    )


async def test_text_that_was_held_back_is_sent_at_the_end() -> None:
    request = make_request(stop=("bcd",))
    request.add_tokens(0, bytewise_ids("abc"), [])
    assert (await read_delta(request)).text == "a"
    request.end_sequence(0, LENGTH)
    assert (await read_delta(request)).text == "bc"


async def test_an_incomplete_character_waits_and_is_replaced_at_the_end() -> None:
    request = make_request()
    request.add_tokens(0, bytewise_ids("é")[:1], [])
    delta = await read_delta(request)
    assert (delta.text, len(delta.token_ids)) == ("", 1)
    request.end_sequence(0, LENGTH)
    assert (await read_delta(request)).text == "\ufffd"


async def test_logprobs_go_with_their_tokens() -> None:
    request = make_request(stop=("b",), num_logprobs=1)
    logprobs = [TokenLogprobs(-float(i), i + 1, [i], [-0.5]) for i in range(3)]
    request.add_tokens(0, bytewise_ids("abc"), logprobs)
    assert (await read_delta(request)).logprobs == logprobs[:2]


async def test_a_client_that_leaves_too_much_unread_is_aborted() -> None:
    scheduler = FakeScheduler()
    request = make_request(scheduler=scheduler, max_unread_tokens=10)
    for _ in range(2):  # what is read makes room
        request.add_tokens(0, [token("a")] * 10, [])
        assert (await read_delta(request)).text == "a" * 10
    assert scheduler.aborted == []
    request.add_tokens(0, [token("a")] * 11, [])
    assert scheduler.aborted == [1]
    with pytest.raises(ResourceExhausted):
        await read_next(request)


async def test_logprobs_count_as_unread_tokens() -> None:
    request = make_request(max_unread_tokens=10, num_logprobs=5)
    logprobs = TokenLogprobs(0.0, 1, [1] * 5, [0.0] * 5)
    request.add_tokens(0, [token("a")] * 2, [logprobs] * 2)
    with pytest.raises(ResourceExhausted):
        await read_next(request)


async def test_a_failed_branch_does_not_harm_its_siblings() -> None:
    request = make_request(n=2)
    request.end_sequence(0, Finish(FinishReason.ERROR, error_message="not finite"))
    request.add_tokens(1, ids_of("Paris"), [])
    request.end_sequence(1, LENGTH)
    request.end(END)
    first, second = (await read_next(request)).deltas
    assert first.finish is not None
    assert first.finish.error_message == "not finite"
    assert (second.text, second.finish) == ("Paris", LENGTH)


async def test_a_request_fails_once_with_the_first_error() -> None:
    request = make_request()
    request.add_tokens(0, ids_of("Paris"), [])
    request.fail(Unavailable("first"))
    request.fail(Unavailable("second"))
    with pytest.raises(Unavailable, match="first"):
        await read_next(request)


@given(st.text("ab😀 é", max_size=30), st.lists(st.integers(1, 6), max_size=40), st.data())
def test_any_arrival_gives_the_same_text_and_tokens(
    text: str, runs: list[int], data: st.DataObject
) -> None:
    """Whatever the runs, and however many of them one read takes."""
    ids = bytewise_ids(text)

    async def collect() -> tuple[str, list[int], list[Finish]]:
        request = make_request(stop=("ab", "😀a"))
        deltas: list[Delta] = []
        start = 0
        for length in [*runs, len(ids)]:
            request.add_tokens(0, ids[start : start + length], [])
            start += length
            if data.draw(st.booleans()) and (delta := request._branches[0].read()):
                deltas.append(delta)
        request.end_sequence(0, LENGTH)
        request.end(END)
        deltas += (await read_next(request)).deltas
        finishes = [delta.finish for delta in deltas if delta.finish]
        token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        return "".join(delta.text for delta in deltas), token_ids, finishes

    sent, token_ids, finishes = asyncio.run(collect())
    ends = [text.find(stop) + len(stop) for stop in ("ab", "😀a") if stop in text]
    end = min(ends, default=None)
    assert token_ids == bytewise_ids(text[:end])
    assert len(finishes) == 1
    assert sent == (text if end is None else text[: end - len(finishes[0].stop or "")])


async def others_run() -> None:
    """Lets tasks that have something to do go on until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def logprob(value: float) -> TokenLogprobs:
    return TokenLogprobs(value, 1, [], [])


def add_all(request: ActiveRequest, index: int, text: str, *values: float) -> None:
    request.add_tokens(index, bytewise_ids(text), [logprob(value) for value in values])


async def test_the_best_of_all_sequences_come_at_the_end_by_their_mean_log_probability() -> None:
    request = make_request(n=2, best_of=4, num_logprobs=0, hides_logprobs=True)
    add_all(request, 0, "aa", -1.0, -2.0)
    add_all(request, 1, "b", -1.4)
    add_all(request, 2, "ccc", -0.1, -0.1, -0.1)
    add_all(request, 3, "d", -9.0)
    waiting = asyncio.create_task(read_next(request))
    await others_run()
    add_all(request, 2, "c", -4.0)
    for index in range(4):
        request.end_sequence(index, LENGTH)
    request.end(END)
    update = await waiting
    assert [(delta.index, delta.text, delta.logprobs) for delta in update.deltas] == [
        (0, "cccc", []),
        (1, "b", []),
    ]
    scores = [delta.finish.score for delta in update.deltas if delta.finish]
    assert scores == pytest.approx([-4.3 / 4, -1.4])
    assert update.end is not None
    assert update.end.usage.completion_tokens == 8
    assert update.end.time_to_first_token_ns is not None


async def test_log_probabilities_that_were_asked_for_come_with_the_best() -> None:
    request = make_request(n=1, best_of=2, num_logprobs=0)
    add_all(request, 0, "a", -2.0)
    add_all(request, 1, "b", -1.0)
    for index in range(2):
        request.end_sequence(index, LENGTH)
    request.end(END)
    (delta,) = (await read_next(request)).deltas
    assert (delta.text, delta.logprobs) == ("b", [logprob(-1.0)])


async def test_what_is_dropped_after_a_stop_string_does_not_count_for_the_best() -> None:
    scheduler = FakeScheduler()
    request = make_request(scheduler=scheduler, n=1, best_of=2, num_logprobs=0, stop=("x",))
    add_all(request, 0, "a", -2.0)
    add_all(request, 1, "bxc", -1.0, -1.0, -50.0)
    waiting = asyncio.create_task(read_next(request))
    await others_run()
    assert scheduler.stopped == [(1, 1, 2)]
    request.end_sequence(0, LENGTH)
    request.end(END)
    update = await waiting
    assert update.deltas[0].text == "b"
    assert update.deltas[0].finish == Finish(FinishReason.STOP_STRING, stop="x", score=-1.0)
    assert update.end is not None
    assert update.end.usage.completion_tokens == 3


async def test_a_sequence_that_failed_is_the_last_choice() -> None:
    request = make_request(n=2, best_of=3, num_logprobs=0)
    failed = Finish(FinishReason.ERROR, error_message="logits are not finite")
    add_all(request, 0, "a", -0.1)
    add_all(request, 1, "b", -5.0)
    request.end_sequence(0, failed)
    request.end_sequence(1, LENGTH)
    request.end_sequence(2, failed)
    request.end(END)
    update = await read_next(request)
    assert [delta.finish for delta in update.deltas] == [LENGTH._replace(score=-5.0), failed]


async def test_as_many_as_are_generated_stream_unranked() -> None:
    request = make_request(n=2, best_of=2)
    request.add_tokens(1, bytewise_ids("b"), [])
    assert (await read_delta(request)).index == 1
