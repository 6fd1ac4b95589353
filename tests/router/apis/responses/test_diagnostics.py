"""Diagnostics of the Responses API: what broke the prefix, as OpenAI's package reads it."""

from typing import Any, get_args

import pytest
from openai.types.responses import response as sdk

from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_router.apis.prefix_diagnostics import of_response
from tests.router.apis.messages.test_diagnostics import LONG, caching
from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.apis.responses.events import PATH, function, read_events

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": LONG},
    {"role": "user", "content": LONG},
]
INSTRUCTIONS = LONG * 4
BODY: dict[str, Any] = {
    "model": MODEL,
    "input": TALK,
    "instructions": INSTRUCTIONS,
    "tools": [function()],
    "reasoning": {"effort": "low"},
}


def naming(response_id: str | None) -> dict[str, Any]:
    return {"prompt_cache_options": {"comparison_response_id": response_id}}


async def ask(http: Http, **fields: Any) -> dict[str, Any]:
    answer = await http.raw.post(PATH, json=BODY | fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    sdk.Response.model_validate(body)
    return body


def edited(place: int) -> list[dict[str, Any]]:
    changed = [dict(one) for one in TALK]
    changed[place]["content"] = f"Well: {changed[place]['content']}"
    return changed


@pytest.mark.parametrize(
    ("changes", "reason", "path"),
    [
        ({"instructions": f"At 10:42. {INSTRUCTIONS}"}, "input_changed", "instructions"),
        ({"tools": [function("sub")]}, "tools_changed", "tools"),
        ({"input": edited(0)}, "input_changed", "input[0]"),
        ({"input": edited(1)}, "input_changed", "input[1]"),
        ({"input": LONG.upper()}, "input_changed", "input"),
    ],
)
async def test_what_the_client_changed_has_a_reason_and_a_place(
    changes: dict[str, Any], reason: str, path: str
) -> None:
    async with make_http(caching()) as http:
        first = await ask(http, **naming(None))
        found = await ask(http, **changes, **naming(first["id"]))
        again = await ask(http, **naming(first["id"]))
    assert "prompt_cache_diagnostics" in first
    missed = found["prompt_cache_diagnostics"]
    assert (missed["type"], missed["reason"], missed["path"]) == ("cache_miss", reason, path)
    reusable = missed["comparison_reusable_tokens"]
    assert reusable == missed["position"] + missed["cache_missed_tokens"]
    assert again["prompt_cache_diagnostics"] == {"type": "cache_hit"}


CALL = {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": LONG}
WORK = [TALK[0], TALK[1], CALL, OUTPUT, TALK[2], TALK[1], TALK[2]]


@pytest.mark.parametrize(
    ("place", "changes", "path"),
    [
        (2, {"arguments": '{"a": 2}'}, "input[1]"),  # the first item of its turn
        (3, {"output": "2"}, "input[3]"),
        (4, {"content": "Well."}, "input[4]"),
        (5, {"content": "Well."}, "input[5]"),
    ],
)
async def test_places_are_those_of_the_items(
    place: int, changes: dict[str, Any], path: str
) -> None:
    changed = [one | changes if i == place else one for i, one in enumerate(WORK)]
    async with make_http(caching()) as http:
        first = await ask(http, input=WORK, **naming(None))
        found = await ask(http, input=changed, **naming(first["id"]))
    assert found["prompt_cache_diagnostics"]["path"] == path


async def test_a_response_that_is_not_known_is_said() -> None:
    async with make_http(caching()) as http:
        unwatched = await ask(http)
        found = await ask(http, **naming(unwatched["id"]))
    assert "prompt_cache_diagnostics" not in unwatched
    assert found["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


async def test_the_last_event_of_a_stream_has_the_diagnostics() -> None:
    async with make_http(caching(0)) as http:
        first = await ask(http, **naming(None))
        asked = BODY | naming(first["id"]) | {"stream": True}
        answer = await http.raw.post(PATH, json=asked)
        with pytest.raises(AssertionError):  # `cause` is a field of ours
            read_events(answer.text)
        whole = await ask(http, **naming(first["id"]))
    found = whole["prompt_cache_diagnostics"]
    assert (found["type"], found["cause"]) == ("unavailable", "evicted")
    assert f'"cause":"{found["cause"]}"' in answer.text.split("\n\n")[-2]


def test_all_types_and_reasons_are_those_of_the_package() -> None:
    kinds = get_args(get_args(sdk.PromptCacheDiagnostics)[0])
    types = {get_args(kind.model_fields["type"].annotation)[0] for kind in kinds}
    reasons = get_args(sdk.PromptCacheDiagnosticsCacheMiss.model_fields["reason"].annotation)
    found = [of_response(PrefixComparison(cause, 1, 2)) for cause in PrefixCause]
    assert {one["type"] for one in found} == types
    assert {one["reason"] for one in found if "reason" in one} <= set(reasons)
