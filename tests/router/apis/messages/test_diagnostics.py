"""Diagnostics of the Messages API: what broke the prefix, as its SDK reads it."""

from typing import Any, get_args

import pytest
from anthropic.types import CacheMissReason, Message
from anthropic.types.beta import BetaCacheMissReason

from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.apis.prefix_diagnostics import of_message
from tests.router.apis.messages.clients import (
    BODY,
    PATH,
    WEATHER,
    Messages,
    events_of,
    make_messages,
)
from tests.router.fakes import bytewise_ids, finished, request_finished, step

LONG = "The capital of France is Paris, and that of Germany is Berlin. "
SYSTEM = LONG * 4
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": LONG},
    {"role": "user", "content": LONG},
]


def caching(num_cached: int | None = None) -> Any:
    """Returns a script that answers "ok" with so many tokens found in the cache; all if None."""

    def script(add: scheduler_pb2.Request) -> Any:
        num_tokens = len(add.prompt_token_ids)
        found = num_tokens if num_cached is None else num_cached
        usage = scheduler_pb2.Usage(
            prompt_tokens=num_tokens, completion_tokens=2, cached_tokens=found
        )
        ends = finished(add.handle) | {"requests": [request_finished(add.handle, usage=usage)]}
        yield step((add.handle, 0, bytewise_ids("ok")), **ends)

    return script


async def compared(messages: Messages, before: dict[str, Any], after: dict[str, Any]) -> Any:
    """Returns the diagnostics of a request that names the one before."""
    first = await messages.whole(diagnostics={"previous_message_id": None}, **before)
    assert first["diagnostics"] is None
    second = await messages.whole(diagnostics={"previous_message_id": first["id"]}, **after)
    return second["diagnostics"]


def edited(place: int) -> list[dict[str, Any]]:
    changed = [dict(one) for one in TALK]
    changed[place]["content"] = f"Well: {changed[place]['content']}"
    return changed


@pytest.mark.parametrize(
    ("changes", "kind", "path"),
    [
        ({"system": f"At 10:42. {SYSTEM}"}, "system_changed", "system"),
        ({"tools": [WEATHER | {"description": "x"}]}, "tools_changed", "tools"),
        ({"messages": edited(0)}, "messages_changed", "messages.0"),
        ({"messages": edited(1)}, "messages_changed", "messages.1"),
        ({"messages": TALK[1:]}, "messages_changed", "messages.0"),
    ],
)
async def test_what_the_client_changed_has_a_type_and_a_place(
    changes: dict[str, Any], kind: str, path: str
) -> None:
    body = {"system": SYSTEM, "tools": [WEATHER], "messages": TALK}
    async with make_messages(caching()) as messages:
        found = await compared(messages, body, body | changes)
        first, second = messages.http.stack.scheduler.added
    reason = found["cache_miss_reason"]
    assert (reason["type"], reason["path"]) == (kind, path)
    before, after = first.prompt_token_ids, second.prompt_token_ids
    same = next(i for i, pair in enumerate(zip(before, after, strict=False)) if len(set(pair)) > 1)
    assert reason["position"] == same // 32 * 32
    assert reason["cache_missed_input_tokens"] == pytest.approx(
        min(len(before), len(after)) - same, abs=32
    )
    assert second.prefix.num_kept_tokens == reason["position"]
    assert second.prefix.path == path


USED = {"type": "tool_use", "id": "1", "name": "get_weather", "input": {"city": "Paris"}}
RAIN = {"type": "tool_result", "tool_use_id": "1", "content": LONG}
WORK: list[dict[str, Any]] = [
    {"role": "user", "content": LONG},
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": [USED]},
    {"role": "user", "content": [RAIN, {"type": "text", "text": LONG}]},
    {"role": "assistant", "content": LONG},
    {"role": "user", "content": LONG},
]


@pytest.mark.parametrize(
    ("place", "content", "path"),
    [
        (1, "Well.", "messages.0"),  # one turn with the message before it
        (2, [USED | {"input": {"city": "Rome"}}], "messages.2"),
        (3, [RAIN | {"content": "Sun."}, {"type": "text", "text": LONG}], "messages.3"),
        (3, [RAIN, {"type": "text", "text": "Well."}], "messages.3"),
        (4, "Well.", "messages.4"),
    ],
)
async def test_places_are_those_of_the_request_whatever_becomes_of_its_blocks(
    place: int, content: Any, path: str
) -> None:
    changed = [one | {"content": content} if i == place else one for i, one in enumerate(WORK)]
    async with make_messages(caching()) as messages:
        found = await compared(
            messages,
            {"system": SYSTEM, "messages": WORK},
            {"system": SYSTEM, "messages": changed},
        )
    assert found["cache_miss_reason"]["path"] == path


async def test_messages_that_are_appended_break_nothing() -> None:
    more = [*TALK, {"role": "assistant", "content": "ok"}, TALK[0]]
    async with make_messages(caching()) as messages:
        assert await compared(messages, {"messages": TALK}, {"messages": more}) is None
        assert "diagnostics" not in await messages.whole(messages=more)
        (_, second, _) = messages.http.stack.scheduler.added
    assert second.prefix.cause == PrefixCause.UNCHANGED.value


async def test_a_message_that_is_not_known_is_said() -> None:
    async with make_messages(caching()) as messages:
        unwatched = await messages.whole(messages=TALK)
        for name in (unwatched["id"], "msg_nothing", "", "x" * 10_000):
            found = await messages.whole(diagnostics={"previous_message_id": name})
            assert found["diagnostics"] == {
                "cache_miss_reason": {"type": "previous_message_not_found"}
            }


async def test_a_stream_says_at_its_start_what_changed_and_at_its_end_what_was_evicted() -> None:
    async with make_messages(caching(0)) as messages:
        first = await messages.whole(diagnostics={}, messages=TALK)
        named = {"previous_message_id": first["id"]}
        start, *_, end, _ = await messages.events(diagnostics=named, messages=edited(1))
        reason = start["message"]["diagnostics"]["cache_miss_reason"]
        assert reason["type"] == "messages_changed"
        assert "diagnostics" not in end
        whole = await messages.whole(diagnostics=named, messages=TALK)
        start, *_, end, _ = await streamed_in_two_steps(messages, named)
    assert start["message"]["diagnostics"] is None
    assert end["diagnostics"] == whole["diagnostics"]
    reason = end["diagnostics"]["cache_miss_reason"]
    assert (reason["type"], reason["cause"]) == ("unavailable", "evicted")
    assert reason["cache_missed_input_tokens"] > 64


async def streamed_in_two_steps(messages: Messages, named: dict[str, Any]) -> list[Any]:
    """Returns the events of a stream whose request ends after its first event was read."""
    scheduler = messages.http.stack.scheduler
    ending, token_ids = scheduler.script, bytewise_ids("ok")
    scheduler.script = lambda add: [step((add.handle, 0, token_ids))]
    body = BODY | {"messages": TALK, "diagnostics": named, "stream": True}
    async with messages.http.raw.stream("POST", PATH, json=body) as answer:
        pieces = answer.aiter_text()
        read = await anext(pieces)
        for updates in ending(scheduler.added[-1]):
            scheduler.send(updates)
        async for piece in pieces:
            read += piece
    return events_of(read)


@pytest.mark.parametrize("union", [CacheMissReason, BetaCacheMissReason])
def test_all_types_are_those_of_the_sdk(union: Any) -> None:
    kinds = get_args(get_args(union)[0])
    types = {kind.model_fields["type"].annotation.__args__[0] for kind in kinds}
    found = [of_message(PrefixComparison(cause, 1, 2, "messages.1")) for cause in PrefixCause]
    written = {one["cache_miss_reason"]["type"] for one in found if one is not None}
    assert written == types
    for one in found:
        fields = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": []}
        usage = {"input_tokens": 1, "output_tokens": 1}
        Message.model_validate(fields | {"usage": usage, "diagnostics": one})


BILLING = "x-anthropic-billing-header: cc_version=2.1.177; cc_entrypoint=cli; cch=%s;"


@pytest.mark.parametrize(
    ("system", "rest"),
    [
        ([{"type": "text", "text": BILLING}, {"type": "text", "text": SYSTEM}], SYSTEM),
        (f"{BILLING}\n{SYSTEM}", SYSTEM),
        ([{"type": "text", "text": BILLING}], None),
        (BILLING, None),
    ],
)
async def test_the_line_of_a_bill_is_left_out_of_a_system_prompt(system: Any, rest: Any) -> None:
    def billed(mark: str) -> Any:
        if isinstance(system, str):
            return system % mark
        return [one | {"text": one["text"].replace("%s", mark)} for one in system]

    async with make_messages(caching()) as messages:
        prompts = [await messages.prompt(system=billed(mark)) for mark in ("36ee5", "0aaa9")]
        plain = await messages.prompt(system=rest)
        other = await messages.prompt(system=f"See x-anthropic-billing-header: {SYSTEM}")
    assert prompts == [plain, plain]
    assert "x-anthropic-billing-header" in other
