"""The endpoints of the Messages API as clients meet them: keys, errors, headers, models."""

import hashlib
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types.shared import ErrorResponse

from tests.router.apis.inference.test_chat import writing
from tests.router.apis.messages.clients import BODY, CALL, HI, PATH, WEATHER, make_messages
from tests.router.apis.openai.clients import MODEL

KEY = "sb-secret"


def write_keys(folder: Path) -> str:
    entry = {"name": "blue", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}
    path = folder / "keys"
    path.write_text(json.dumps([entry]))
    return str(path)


async def test_the_sdk_holds_a_conversation_with_tools() -> None:
    """The model calls, the client answers, and the SDK finds the call that it answers."""

    def script(add: Any) -> Any:
        return writing(CALL if len(messages.http.stack.scheduler.added) == 1 else "Sunny.")(add)

    async with make_messages(script) as messages:
        sdk, fields = messages.sdk.messages, {"model": MODEL, "max_tokens": 64, "tools": [WEATHER]}
        first: Any = await sdk.create(messages=HI, **fields)  # type: ignore[call-overload]
        (call,) = first.content
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "20 degrees"}
        turns = [*HI, first.to_param(), {"role": "user", "content": [result]}]
        second: Any = await sdk.create(messages=turns, **fields)  # type: ignore[call-overload]
        async with messages.sdk.beta.messages.stream(
            **BODY, betas=["context-management"]
        ) as stream:
            texts = [text async for text in stream.text_stream]
    assert (first.stop_reason, call.name, call.input) == (
        "tool_use", "get_weather", {"city": "Paris"}
    )  # fmt: skip
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "Sunny.")
    assert "".join(texts) == "Sunny."
    assert second._request_id == second.id


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"x-api-key": "wrong"}, 401), ({"x-api-key": KEY}, 200),
     ({"authorization": f"Bearer {KEY}"}, 200)],
)  # fmt: skip
async def test_a_key_is_asked_for_in_the_shape_of_the_api(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with make_messages(api_keys=write_keys(tmp_path)) as messages:
        answer = await messages.post(f"{PATH}?beta=true", headers=headers)
        check_error(answer, status, "authentication_error")


@pytest.mark.parametrize(
    ("fields", "path", "status", "kind"),
    [
        ({"model": "other"}, PATH, 404, "not_found_error"),
        ({"model": "other"}, f"{PATH}/count_tokens", 404, "not_found_error"),
        ({}, f"{PATH}/batches", 404, "not_found_error"),
        (
            {"messages": [{"role": "user", "content": "x" * 3000}]},
            PATH,
            400,
            "invalid_request_error",
        ),
        ({"max_tokens": "many"}, PATH, 400, "invalid_request_error"),
        ({"system": "x" * (9 << 20)}, PATH, 413, "request_too_large"),
    ],
)
async def test_errors_have_the_shape_of_the_api(
    fields: dict[str, Any], path: str, status: int, kind: str
) -> None:
    async with make_messages() as messages:
        check_error(await messages.post(path, **fields), status, kind)
        get = await messages.http.raw.get(path)
        assert get.status_code == (404 if "batches" in path else 405)
        assert get.json()["type"] == "error"
        other = await messages.http.raw.post("/v1/chat/completions", json={})
        assert set(other.json()) == {"error"}


def check_error(answer: Any, status: int, kind: str) -> None:
    assert answer.status_code == status
    if status != 200:
        error = answer.json()
        assert error["type"] == "error" and error["error"]["type"] == kind
        assert error["request_id"] == answer.headers["request-id"]
        if kind != "request_too_large":  # the SDK's types lack it
            ErrorResponse.model_validate(error)
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_a_prompt_beyond_the_window_is_told_in_the_words_that_clients_look_for() -> None:
    async with make_messages() as messages:
        with pytest.raises(
            anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 2047"
        ):
            await messages.sdk.messages.create(
                **BODY | {"messages": [{"role": "user", "content": "x" * 3000}]}
            )
    async with make_messages(max_prompt_bytes=1 << 20) as messages:  # too long to be counted
        asked = BODY | {"messages": [{"role": "user", "content": "x" * (1 << 20)}]}
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = await messages.http.raw.post(path, json=asked)
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["message"].startswith("prompt is too long: ")


async def test_a_server_that_shuts_down_says_so_in_the_shape_of_the_api() -> None:
    async with make_messages() as messages:
        assert messages.http.stack.router.http is not None
        messages.http.stack.router.http.stop_serving()
        check_error(await messages.post(), 503, "overloaded_error")


async def test_no_edit_of_the_context_is_applied_and_the_answer_says_so() -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    async with make_messages() as messages:
        whole = await messages.whole(context_management=edits)
        events = await messages.events(context_management=edits)
        counted = await messages.post(
            f"{PATH}/count_tokens", max_tokens=None, context_management=edits
        )
    assert whole["context_management"] == events[-2]["context_management"] == {"applied_edits": []}
    count = counted.json()
    assert count["context_management"] == {"original_input_tokens": count["input_tokens"]}


async def test_models_are_listed_for_the_clients_of_both_apis() -> None:
    async with make_messages(served_model_name="tiny,small") as messages:
        raw = messages.http.raw
        models = [model async for model in messages.sdk.models.list(limit=1)]
        one = await messages.sdk.models.retrieve("small")
        theirs = [model async for model in messages.http.sdk.models.list()]
        before = (await raw.get("/v1/models?before_id=small&limit=5")).json()
        head = await raw.head("/")
        bad = await raw.get("/v1/models?limit=0")
    assert [model.id for model in models] == [model.id for model in theirs] == ["tiny", "small"]
    assert (one.id, one.display_name, one.type) == ("small", "small", "model")
    assert one.max_input_tokens == one.max_tokens == 2048
    for model in (*models, one):
        anthropic.types.ModelInfo.model_validate(model.model_dump())
    for their in theirs:
        openai.types.Model.model_validate(their.model_dump())
    assert [card["id"] for card in before["data"]] == ["tiny"]
    assert (before["has_more"], before["first_id"], before["last_id"]) == (False, "tiny", "tiny")
    assert (head.status_code, bad.status_code) == (200, 400)


async def test_generated_clients_keep_the_names_of_the_errors_types() -> None:
    """Two types of one name would both get others in /openapi.json."""
    async with make_messages() as messages:
        schemas = (await messages.http.raw.get("/openapi.json")).json()["components"]["schemas"]
    assert {"ErrorAnswer", "ErrorDetail", "MessagesError", "MessagesErrorDetail"} <= schemas.keys()
