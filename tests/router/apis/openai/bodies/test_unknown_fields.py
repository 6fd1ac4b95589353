"""Fields that the HTTP API does not have: ignored and named, or refused."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from signalbox_router.apis.openai.bodies import unknown_fields
from tests.router.apis.openai.clients import HI, Http, make_http
from tests.router.apis.openai.test_answers import TOOL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEADER = "x-signalbox-ignored-fields"


async def test_unknown_fields_are_ignored_and_named_in_header_and_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger=unknown_fields.__name__)
    body: dict[str, Any] = {
        "messages": [{**HI[0], "id": "secret"}, {**HI[0], "id": "secret"}],
        "tools": [{**TOOL, "cache_control": {"type": "secret"}}],
        "stream_options": None,
        "provider": {"order": ["secret"]},
        "top_b": 0.5,
    }
    async with make_http() as http:
        for stream in (False, True, False):
            answer = await http.raw.post(CHAT, json={**body, "stream": stream})
            assert answer.status_code == 200
            named = "provider, top_b, messages[].id, tools[].cache_control"
            assert answer.headers[HEADER] == named
        ours = [one for one in caplog.records if one.name == unknown_fields.__name__]
        (record,) = ours  # the same fields are a warning once
        assert named in record.getMessage() and "secret" not in record.getMessage()
        answer = await http.raw.post("/tokenize", json={"prompt": "Hi", "fast": True})
        assert answer.headers[HEADER] == "fast"
        answer = await http.raw.post("/detokenize", json={"tokens": [5], "fast": True})
        assert answer.headers[HEADER] == "fast"
        plain = await http.raw.post(CHAT, json={"messages": HI})
        assert HEADER not in plain.headers
        first, *others = [list(add.prompt_token_ids) for add in http.stack.scheduler.added]
        assert all(prompt == first for prompt in others[:2])


async def test_what_is_named_neither_grows_nor_breaks_a_header() -> None:
    names = ["a\r\nset-cookie: x", "東", "b,c", "long" * 100, "🚂" * 64]
    names += [f"x{i}zz" for i in range(100)]
    async with make_http() as http:
        answer = await http.raw.post(COMPLETIONS, json={"prompt": "a", **dict.fromkeys(names, 1)})
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        named = answer.headers[HEADER].split(", ")
        assert named[:3] == ["a\\r\\nset-cookie: x", "\\u6771", "b\\x2cc"]
        assert len(named) == 17 and named[-1] == f"and {len(names) - 16} more"
        assert max(map(len, named)) <= 70


async def test_many_unknown_names_are_refused_after_few_were_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def compare(name: str, known: Sequence[str]) -> None:
        compared.append(name)

    monkeypatch.setattr(unknown_fields, "_meant", compare)
    most = unknown_fields.MAX_UNKNOWN
    async with make_http() as http:
        message = HI[0] | {f"x{i}": 1 for i in range(most)}
        answer = await http.raw.post(CHAT, json={"messages": [message] * 3})
        assert answer.status_code == 200 and len(compared) == most  # those of a list's items once
        answer = await http.raw.post(CHAT, json={"messages": [message | {f"x{most}": 1}]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == f"messages[0].x{most}"
        assert len(compared) == 2 * most + 1


@pytest.mark.parametrize("refuses", [False, True])
async def test_an_error_holds_the_beginning_of_a_long_name(refuses: bool) -> None:
    async with make_http(unknown_fields="refuse" if refuses else "warn") as http:
        long = "max_tokens" + "s" * (1 << 20) if refuses else "presence_penalt" + "_" * (1 << 20)
        answer = await http.raw.post(COMPLETIONS, json={"prompt": "a", long: 1})
        assert answer.status_code == 400 and len(answer.content) < 1000
        assert http.stack.scheduler.added == []


@pytest.mark.parametrize(
    ("path", "fields", "param", "meant"),
    [
        (COMPLETIONS, {"max_token": 5}, "max_token", "max_tokens"),
        (COMPLETIONS, {"maxTokens": 5}, "maxTokens", "max_tokens"),
        (COMPLETIONS, {"temprature": 0}, "temprature", "temperature"),
        (COMPLETIONS, {"stops": ["a"]}, "stops", "stop"),
        (COMPLETIONS, {"stream": True, "stream_options": {"include_usages": True}},
         "stream_options.include_usages", "stream_options.include_usage"),
        (CHAT, {"tool": [TOOL]}, "tool", "tools"),
        (CHAT, {"messages": [*HI, {"role": "user", "content": "a", "names": "x"}]},
         "messages[1].names", "messages[1].name"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {
            "schema": {}, "descripton": "x"}}},
         "response_format.json_schema.descripton", "response_format.json_schema.description"),
    ],
)  # fmt: skip
async def test_a_slip_is_refused_with_what_was_meant(
    http: Http, path: str, fields: dict[str, Any], param: str, meant: str
) -> None:
    body = {"messages": HI} if path == CHAT else {"prompt": "a"}
    answer = await http.raw.post(path, json=body | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].endswith(f"did you mean {meant}?")
    assert http.stack.scheduler.added == []


@pytest.mark.parametrize("unknown_fields", ["warn", "refuse"])
async def test_a_field_that_is_known_and_not_served_is_refused_by_name(unknown_fields: str) -> None:
    async with make_http(unknown_fields=unknown_fields) as http:
        for path, name, value in (
            (CHAT, "functions", [TOOL]),
            (CHAT, "documents", [{"text": "a"}]),
            (COMPLETIONS, "prompt_embeds", "x"),
            (COMPLETIONS, "logits_processors", ["x"]),
            (CHAT, "repetition_detection", {"max_pattern_size": 5}),
        ):
            body = {"messages": HI} if path == CHAT else {"prompt": "a"}
            error = (await http.raw.post(path, json=body | {name: value})).json()["error"]
            assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert http.stack.scheduler.added == []
        neutral = {"functions": [], "moderation": False, "documents": None}
        answer = await http.raw.post(CHAT, json={"messages": HI, **neutral})
        assert answer.status_code == 200 and HEADER not in answer.headers


async def test_unknown_fields_are_refused_if_the_server_is_told_to() -> None:
    async with make_http(unknown_fields="refuse") as http:
        for fields, param in (({"provider": 1}, "provider"), ({"stream_options": {"x": 1}}, "")):
            answer = await http.raw.post(COMPLETIONS, json={"prompt": "a", "stream": True} | fields)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param or "stream_options.x")
        assert http.stack.scheduler.added == []
