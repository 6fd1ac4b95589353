"""Answers of the Messages API, whole and streamed, read by the types of its SDK."""

import json
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import anthropic
import pytest

from signalbox_contract.updates import Timings, Usage
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.apis.agents import decode_reasoning
from signalbox_router.apis.messages.conversation_codec import read_conversation
from signalbox_router.apis.messages.response import ContentBlocks, MessageAnswer, added_up
from signalbox_router.apis.messages.types import MessagesBody
from signalbox_router.apis.openai import streaming
from signalbox_router.apis.openai.response_fields import to_json
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import (
    Delta,
    End,
    Finish,
    FinishReason,
    ToolCallDelta,
)
from tests.router.apis.inference.test_chat import TEMPLATE, writing
from tests.router.apis.messages.clients import (
    BODY,
    CALL,
    HI,
    WEATHER,
    events_of,
    make_messages,
)
from tests.router.fakes import bytewise_ids, finished, make_files, request_finished, step

THINKING = {"files": make_files(chat_template="{# <think></think> #}" + TEMPLATE)}
HUGE = r'{"x": [1e999, -0.5, "\ud800"]}'
THOUGHT = "<think>\nLet me see.\n</think>\n\n"


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("ok", ["text"]),
        ("", []),
        (CALL, ["tool_use"]),
        (f"Well.\n{CALL}\n{CALL}", ["text", "tool_use", "tool_use"]),
        (f"{THOUGHT}Yes.", ["thinking", "text"]),
        (f"{THOUGHT}{CALL}", ["thinking", "tool_use"]),
    ],
)
async def test_a_stream_adds_up_to_the_whole_answer(text: str, kinds: list[str]) -> None:
    async with make_messages(writing(text), **THINKING) as messages:
        whole = await messages.whole(tools=[WEATHER])
        events = await messages.events(tools=[WEATHER])
        async with messages.sdk.messages.stream(**BODY, tools=[WEATHER]) as stream:
            read = json.loads((await stream.get_final_message()).to_json(exclude_unset=False))
    assert [block["type"] for block in whole["content"]] == kinds
    for block in whole["content"]:
        assert None not in block.values()  # clients in TypeScript take no null for an absent field
        if block["type"] == "thinking":
            assert block["thinking"] == decode_reasoning(block["signature"]) == "Let me see."
        if block["type"] == "tool_use":
            assert block["input"] == {"city": "Paris"}
    start, *middle, delta, stop = events
    assert (start["type"], stop) == ("message_start", {"type": "message_stop"})
    assert without_ids(added_up(middle)) == without_ids(whole["content"])
    assert delta["delta"]["stop_reason"] == whole["stop_reason"] == read["stop_reason"]
    assert delta["usage"] == whole["usage"] == {key: read["usage"][key] for key in whole["usage"]}
    assert [block["type"] for block in read["content"]] == kinds
    check_order(middle)


async def test_a_runner_of_tools_goes_on_without_a_thread_that_is_not_held() -> None:
    """The SDK asks for a thread by default, and reads in the error whether there may be none."""

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """Tells the weather."""
        return f"{city}: rain"

    async with make_messages(writing(CALL)) as messages:
        runner = messages.sdk.beta.messages.tool_runner(
            **BODY, tools=[get_weather], max_iterations=1
        )
        answer = await runner.until_done()
        assert len(messages.http.stack.scheduler.added) == 1
    assert [block.input for block in answer.content if block.type == "tool_use"] == [
        {"city": "Paris"}
    ]


def check_order(events: list[dict[str, Any]]) -> None:
    """Blocks follow each other, and each is closed before the next."""
    is_open, last = False, -1
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                is_open, last = True, last + 1
            case "content_block_stop":
                assert is_open
                is_open = False
        assert event["index"] == last
    assert not is_open


def test_text_between_calls_and_cut_arguments_keep_their_places() -> None:
    blocks = ContentBlocks(shows_thinking=True, omits_text_of_thinking=False)
    finish = Finish(FinishReason.LENGTH)
    deltas = [
        Delta(index=0, text="A", tool_calls=[ToolCallDelta(index=0, id="a", name="f", offset=1)]),
        Delta(index=0, tool_calls=[ToolCallDelta(index=0, arguments='{"x": [1, 2')]),
        Delta(index=0, reasoning="B", text="C"),
        Delta(index=0, tool_calls=[ToolCallDelta(index=1, id="b", name="g", arguments="no")]),
        Delta(index=0, tool_calls=[ToolCallDelta(index=2, id="c", name="f", arguments=HUGE)]),
        Delta(index=0, finish=finish),
    ]
    events = [event for delta in deltas for event in blocks.events(delta)]
    check_order(events)
    content = added_up(events)
    assert [block["type"] for block in content] == [
        "text",
        "tool_use",
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    inputs = [block["input"] for block in content if "input" in block]
    assert inputs == [{"x": [1, 2]}, {}, {"x": [None, -0.5, "\ufffd"]}]
    to_json(content)


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        ({"type": "adaptive", "display": "omitted"}, [""]),
        ({"type": "adaptive", "display": "summarized"}, ["Let me see."]),
        ({"type": "disabled"}, []),
    ],
)
async def test_reasoning_is_shown_as_the_request_says(thinking: Any, shown: list[str]) -> None:
    async with make_messages(writing(f"{THOUGHT}Yes."), **THINKING) as messages:
        whole = await messages.whole(thinking=thinking)
        events = await messages.events(thinking=thinking)
    *thoughts, text = whole["content"]
    assert (text["text"], [one["thinking"] for one in thoughts]) == ("Yes.", shown)
    assert all(decode_reasoning(one["signature"]) == "Let me see." for one in thoughts)
    assert added_up(events[1:-2]) == whole["content"]


REASONS = scheduler_pb2


@pytest.mark.parametrize(
    ("text", "reason", "fields", "expected", "stop"),
    [
        ("ok", REASONS.FINISH_REASON_STOP, {}, "end_turn", None),
        ("ok", REASONS.FINISH_REASON_LENGTH, {"max_tokens": 2}, "max_tokens", None),
        ("ok", REASONS.FINISH_REASON_LENGTH, {}, "model_context_window_exceeded", None),
        ("a END", REASONS.FINISH_REASON_STOP, {"stop_sequences": ["END"]}, "stop_sequence", "END"),
        (CALL, REASONS.FINISH_REASON_STOP, {"tools": [WEATHER]}, "tool_use", None),
    ],
)
async def test_an_answer_says_why_it_ended(
    text: str, reason: int, fields: dict[str, Any], expected: str, stop: str | None
) -> None:
    async with make_messages(writing(text, reason=reason)) as messages:
        whole = await messages.whole(**fields)
        *_, delta, _ = await messages.events(**fields)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (expected, stop)
    assert delta["delta"] == {
        name: whole[name] for name in ("stop_reason", "stop_sequence", "stop_details")
    }


async def test_max_tokens_beyond_the_window_are_cut() -> None:
    async with make_messages() as messages:
        await messages.whole(max_tokens=32_000)
        (added,) = messages.http.stack.scheduler.added
    assert added.max_tokens == 2048 - len(added.prompt_token_ids)
    assert added.max_tokens_is_default  # a scheduler whose window is shorter cuts it further


async def test_no_tokens_are_asked_for_to_have_a_prompt_cached() -> None:
    async with make_messages() as messages:
        whole = await messages.whole(max_tokens=0)
        *_, delta, _ = await messages.events(max_tokens=0)
        added = messages.http.stack.scheduler.added
    assert [one.prewarm for one in added] == [True, True]
    assert (whole["content"], whole["stop_reason"]) == ([], "max_tokens")
    assert whole["usage"]["output_tokens"] == delta["usage"]["output_tokens"] == 0


async def test_input_tokens_leave_out_what_was_found() -> None:
    async with make_messages() as messages:
        fields: Any = {"tools": [WEATHER], "system": "Be brief."}
        usage = (await messages.whole(**fields))["usage"]
        counted = await messages.post("/v1/messages/count_tokens", max_tokens=None, **fields)
        count = await messages.sdk.messages.count_tokens(model="tiny", messages=HI, **fields)
    found = usage["cache_read_input_tokens"]
    assert found == 3  # as the fake scheduler says
    assert usage["input_tokens"] + found == counted.json()["input_tokens"] == count.input_tokens


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stream_that_waits_begins_with_pings(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(streaming, "PATIENCE_S", 0)
    monkeypatch.setattr(streaming, "WAIT_S", 0.01)
    async with make_messages(lambda add: ()) as messages:
        request = messages.http.raw.build_request("POST", "/v1/messages", json=BODY | STREAM)
        answer = await messages.http.raw.send(request, stream=True)
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(6)] == [*PING, *PING]
        handle = (await messages.http.stack.added()).handle
        full = request_finished(handle, code=8, message="no room")
        ends = {"requests": [full]} if fails else finished(handle)
        messages.http.stack.scheduler.send(step((handle, 0, bytewise_ids("ok")), **ends))
        rest = [line async for line in lines]
        await answer.aclose()
        await messages.http.stack.check_nothing_is_left()
    while rest[:3] == PING:
        del rest[:3]
    events = events_of("".join(f"{line}\n" for line in rest))
    if fails:
        assert events[-1] == {"type": "error", "error": NO_ROOM}
    else:
        assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
        assert added_up(events[1:-2])[0]["text"] == "ok"


PING = ["event: ping", 'data: {"type":"ping"}', ""]
STREAM: Any = {"stream": True}
NO_ROOM = {"type": "rate_limit_error", "message": "no room"}


@pytest.mark.parametrize("begins", [False, True])
async def test_what_fails_before_a_stream_begins_has_its_status(begins: bool) -> None:
    """A stream that has begun ends with the error, in the same shape."""

    def script(add: Any) -> Iterator[Any]:
        if begins:
            yield step((add.handle, 0, bytewise_ids("ok")))
        full = request_finished(add.handle, code=8, message="no room")
        yield step(requests=[full])

    async with make_messages(script) as messages:
        answer = await messages.post(**STREAM)
        with pytest.raises(anthropic.APIStatusError, match="no room") as raised:
            async with messages.sdk.messages.stream(**BODY) as stream:
                await stream.get_final_message()
    if begins:
        assert events_of(answer.text)[-1] == {"type": "error", "error": NO_ROOM}
    else:
        assert answer.json() == {
            "type": "error", "error": NO_ROOM, "request_id": answer.headers["request-id"]
        }  # fmt: skip
    assert raised.value.status_code == answer.status_code == (200 if begins else 429)


def test_a_delta_of_text_alone_is_written_as_any_other() -> None:
    blocks = ContentBlocks(shows_thinking=True, omits_text_of_thinking=False)
    blocks.events(Delta(index=0, text="A"))
    plain = SimpleNamespace(text="B", finish=None, reasoning="", tool_calls=[])
    assert blocks.text_alone(plain) == 0  # type: ignore[arg-type]
    for other in (
        Delta(index=0, text=""),
        Delta(index=0, text="B", reasoning="C"),
        Delta(index=0, text="B", finish=Finish(FinishReason.STOP)),
        Delta(index=0, text="B", tool_calls=[ToolCallDelta(index=0, id="a", name="f")]),
    ):
        assert blocks.text_alone(other) is None


async def test_usage_tells_how_many_tokens_are_thoughts() -> None:
    body = MessagesBody(**BODY)
    answer = MessageAnswer(body, read_conversation(body), message_id="a", model="b", betas="")
    end = End(Usage(7, 5, 3), Timings(0, 0, 0, 0), num_reasoning_tokens=2)
    delta = Delta(index=0, text="A", finish=Finish(FinishReason.STOP))

    async def updates() -> AsyncIterator[Update]:
        yield Update(SimpleNamespace(prompt_token_ids=[5] * 7), [delta], end)  # type: ignore[arg-type]

    usage = (await answer.whole(updates()))["usage"]
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (5, {"thinking_tokens": 2})
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (4, 3)
