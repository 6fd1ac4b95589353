"""Events of a stream, some of which are written around a text without the rest being encoded."""

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import sentinel

import pytest

from signalbox_contract.updates import Timings, Usage
from signalbox_router.apis.openai.chat_response import ChatAnswer
from signalbox_router.apis.openai.completion_response import CompletionAnswer
from signalbox_router.apis.openai.requests.chat_types import ChatBody
from signalbox_router.apis.openai.requests.types import CompletionBody
from signalbox_router.apis.openai.response_fields import ResponseHead
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta, End, Finish, FinishReason, ToolCallDelta

TEXTS = ("A", ' "b"\\', "\0", "\n\u2028", "\N{GRINNING FACE}", "</data>", "Z")
END = End(Usage(3, len(TEXTS), 0), Timings(0, 0, 0, 0))
LENGTH = Finish(FinishReason.LENGTH)
HEAD: Any = ResponseHead(
    id='"\0"', model="\0", tokenizer=sentinel.tokenizer, system_fingerprint="f"
)
REQUEST: Any = SimpleNamespace(
    prompt_token_ids=[1, 2, 3],
    echo=None,
    params=SimpleNamespace(n=2, prediction=()),
    tokenizer=sentinel.tokenizer,
)
USAGE = {"include_usage": True}


def completion(**fields: Any) -> CompletionAnswer:
    return CompletionAnswer(CompletionBody(prompt="Hi", stream=True, **fields), HEAD)


def chat(**fields: Any) -> ChatAnswer:
    messages: Any = [{"role": "user", "content": "Hi"}]
    return ChatAnswer(ChatBody(messages=messages, stream=True, **fields), HEAD)


def read(written: bytes) -> list[dict[str, Any]]:
    """Returns the bodies of whole events."""
    *events, rest = written.decode().split("\n\n")
    assert not rest
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def streamed(answer: Any) -> list[dict[str, Any]]:
    """Returns the events of two sequences with the same texts, a token each."""
    written = b""
    for position, text in enumerate(TEXTS):
        finish = LENGTH if position == len(TEXTS) - 1 else None
        deltas = [Delta(index=i, text=text, token_ids=[5], finish=finish) for i in (0, 1)]
        written += answer.events(Update(REQUEST, deltas, END if finish else None))
    return read(written + await answer.last_event())


def without(event: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns the event without these fields of the event or of its choices."""
    choices = [{k: v for k, v in one.items() if k not in names} for one in event["choices"]]
    return {k: v for k, v in event.items() if k not in names} | {"choices": choices}


@pytest.mark.parametrize("options", [{}, {"stream_options": USAGE}])
@pytest.mark.parametrize("make", [completion, chat])
async def test_an_event_says_the_same_whether_its_text_alone_is_encoded_or_all_of_it(
    make: Any, options: dict[str, Any]
) -> None:
    events = await streamed(make(**options))
    whole = await streamed(make(**options, return_token_ids=True))  # ids differ in each event
    assert events == [without(one, "token_ids", "prompt_token_ids") for one in whole]
    assert [list(one) for one in events[-3:]] == [list(one) for one in whole[-3:]]
    for index in (0, 1):
        choices = [one for event in events for one in event["choices"] if one["index"] == index]
        texts = [one["text"] if "text" in one else one["delta"].get("content") for one in choices]
        assert "".join(texts) == "".join(TEXTS)


def test_deltas_of_a_chat_that_are_more_than_text_are_written_whole() -> None:
    answer = chat()
    call = ToolCallDelta(index=0, id="c", name="f", arguments="{}")
    read(answer.events(Update(REQUEST, [Delta(index=0, text="a"), Delta(index=0, text="b")], None)))
    deltas = [
        Delta(index=0, text="c", reasoning="r"),
        Delta(index=0, text="d", tool_calls=[call]),
        Delta(index=0, text="", token_ids=[1]),
        Delta(index=0, text="e", finish=LENGTH),
    ]
    events = read(answer.events(Update(REQUEST, deltas, None)))
    first, second, third, fourth = (event["choices"][0] for event in events)
    assert first["delta"] == {"content": "c", "reasoning": "r", "reasoning_content": "r"}
    assert second["delta"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert third["delta"] == {}
    assert (fourth["delta"], fourth["finish_reason"]) == ({"content": "e"}, "length")
