"""What the model is told of an input of /v1/responses, and what is refused by name."""

import json
from typing import Any, get_args, get_type_hints

import pytest
from openai.types.responses import ResponseIncludable, ToolParam
from openai.types.responses.tool_choice_types import ToolChoiceTypes
from openai.types.shared import ReasoningEffort

from signalbox_router.apis.openai import streaming
from signalbox_router.apis.responses.request_codec import INCLUDABLE
from signalbox_router.apis.responses.tools_codec import HOSTED, model_name
from signalbox_router.apis.responses.types import InputTokensBody, ReasoningOptions
from signalbox_router.prompt.chat.conversation import MAX_PARTS
from tests.router.apis.inference.test_chat import writing
from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.apis.responses.events import PATH, ask, function, read_events
from tests.router.fakes import bytewise_ids, finished, make_files, make_tokenizer, step

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Weather?"}
CALLED = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": [
    {"type": "input_text", "text": "3"}, {"type": "input_text", "text": "4"}]}  # fmt: skip
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
    {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]}  # fmt: skip


async def prompt_of(http: Http, path: str, body: dict[str, Any]) -> str:
    answer = await http.raw.post(path, json={"model": MODEL} | body)
    assert answer.status_code == 200, answer.text
    ids = list(http.stack.scheduler.added[-1].prompt_token_ids)
    return await make_tokenizer().decode(ids, skip_special_tokens=False)


async def test_an_input_becomes_the_prompt_of_the_same_chat(http: Http) -> None:
    tool = function()
    of_chat = {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "developer", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": [
            {"type": "text", "text": "3"}, {"type": "text", "text": "4"}]},
        {"role": "system", "content": "Now!"},
        USER,
    ]  # fmt: skip
    items: list[dict[str, Any]] = [
        USER,
        SAID,
        CALLED,
        OUTPUT,
        {"role": "developer", "content": "Now!"},
        USER,
    ]
    wanted = await prompt_of(http, CHAT, {"messages": chat, "tools": [of_chat]})
    body = {"instructions": "Be brief.", "input": items, "tools": [tool]}
    assert await prompt_of(http, PATH, body) == wanted
    body["input"] = [item | {"type": "message"} if "role" in item else item for item in items]
    assert await prompt_of(http, PATH, body) == wanted


async def test_what_comes_between_calls_does_not_part_them_from_their_results() -> None:
    """A model may reason and say something between the parallel calls of one answer."""
    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.reasoning_content }}|{{ m.content }}|"
        "{{ m.tool_calls | length if m.tool_calls else m.tool_call_id }}]{% endfor %}"
    )
    thoughts: list[dict[str, Any]] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]} for text in "AB"
    ]
    second, result = CALLED | {"call_id": "c2"}, OUTPUT | {"call_id": "c2", "output": "5"}
    items = [USER, thoughts[0], SAID, CALLED, thoughts[1], SAID, second, OUTPUT, result, USER]
    async with make_http(files=make_files(chat_template=template)) as http:
        text = await prompt_of(http, PATH, {"input": items})
    said = "Let me see.\nLet me see."
    assert text == f"[user||Weather?|][assistant|A\nB|{said}|2][tool||3\n4|c1][tool||5|c2]" + (
        "[user||Weather?|]"
    )


async def test_custom_tools_and_namespaces_are_functions_to_the_model(http: Http) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "a+"}
    custom = {"type": "custom", "name": "patch", "description": "P", "format": grammar}
    inner = function("n" * 60, description="Adds")
    space = {"type": "namespace", "name": "crm", "description": "C", "tools": [inner]}
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "aa"}
    result = {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}
    tools = [custom, space, {"type": "web_search", "filters": {}}]
    text = await prompt_of(http, PATH, {"input": [USER, call, result], "tools": tools})
    assert '"pattern": "^(?:a+)$"' in text
    assert '{"name": "patch", "arguments": {"input": "aa"}}' in text
    name = model_name(inner["name"], "crm")
    assert len(name) == 64 and f'"name": "{name}", "description": "C\\n\\nAdds"' in text
    assert "web_search" not in text
    answer = await http.raw.post(PATH, json={"input": "Hi", "tools": tools})
    assert answer.headers["x-signalbox-omitted-tools"] == "web_search"
    assert "x-signalbox-ignored-fields" not in answer.headers
    answer = await ask(http, tools=tools, metadata={"a": "b"})
    assert answer.metadata == {"a": "b", "omitted_tools": "web_search"}
    assert [tool.type for tool in answer.tools] == ["custom", "namespace"]


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("required", ["add", "crm__sub"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [
            {"type": "function", "name": "sub", "namespace": "crm"}, {"type": "web_search"}]},
         ["crm__sub"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [
            {"type": "namespace", "name": "crm"}]}, ["crm__sub"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "add"}]}, ["add"]),
    ],
)  # fmt: skip
async def test_a_choice_constrains_the_calls(http: Http, choice: Any, called: list[str]) -> None:
    space = {"type": "namespace", "name": "crm", "tools": [function("sub")]}
    body = {"input": "Hi", "tools": [function(), space], "tool_choice": choice}
    text = await prompt_of(http, PATH, body)
    assert '"add"' in text and '"crm__sub"' in text
    constraint = http.stack.scheduler.added[-1].sampling_params.structured_output
    rules = constraint.json_schema or constraint.rules
    assert [f'"const": "{name}"' in rules for name in ("add", "crm__sub")] == [
        name in called for name in ("add", "crm__sub")
    ]


@pytest.mark.parametrize(
    ("written", "rendered"),
    [
        ("", "{}"),
        ("null", "{}"),
        ('{"path": "a b", "li', '{"path": "a b"}'),
        ('{"a": {"b": [1, "x\\ny\\ud83d', '{"a": {"b": [1, "x\\ny"]}}'),
        (r'{"\udc00": "\ud83d\uD83D\ude00\\ud83d"}', r'{"�": "�😀\\ud83d"}'),
        (r'{"a": "\ud83d\\\uD83d\ude', r'{"a": "�\\"}'),
        ("{'a': 1}", """{"input": "{'a': 1}"}"""),
        ("[1]", '{"input": "[1]"}'),
    ],
)
async def test_a_call_that_was_cut_or_broken_is_taken_back(
    http: Http, written: str, rendered: str
) -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": written}}
    talk = [USER, {"role": "assistant", "tool_calls": [call]}]
    text = await prompt_of(http, CHAT, {"messages": talk})
    assert f'{{"name": "add", "arguments": {rendered}}}' in text
    body = {"input": [USER, CALLED | {"arguments": written}]}
    assert await prompt_of(http, PATH, body) == text


PART = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
SEARCH = {"type": "web_search"}
LOOK = {"type": "grammar", "syntax": "regex", "definition": "(?=a)b"}
HUGE = {"type": "number", "maximum": float("inf")}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"tools": [SEARCH], "tool_choice": SEARCH}, "tool_choice.type"),
    ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "wizardry"}]}, "tools[0].type"),
    ({"tools": [function("a b")]}, "tools[0].name"),
    ({"tools": [function(), {"type": "namespace", "name": "n", "tools": [function("a b")]}]},
     "tools[1].tools[0].name"),
    ({"tool_choice": {"type": "function", "name": "add"}}, "tool_choice.name"),
    ({"input": [PART]}, "input[0].content[0].type"),
    ({"input": [USER, {"type": "item_reference", "id": "x"}]}, "input[1]"),
    ({"input": [USER, {"type": "compaction", "encrypted_content": "x"}]}, "input[1]"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [USER, CALLED | {"arguments": "[" * 513}]}, "input[1].arguments"),
    ({"input": [5]}, "input[0]"),
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"include": ["all"]}, "include[0]"),
    ({"n": 2}, "n"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"reasoning": {"effort": "utmost"}}, "reasoning.effort"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [USER]}, "messages"),
    ({"max_output_token": 5}, "max_output_token"),
]  # fmt: skip
OF_ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "custom", "name": "x", "format": LARK}]}, "tools[0].format"),
    ({"tools": [{"type": "custom", "name": "x", "format": LOOK}]}, "tools[0].format.definition"),
    ({"tools": [SEARCH, function(strict=True, parameters={"properties": {"a": 5}})]},
     "tools[1].parameters"),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": HUGE}}}, "text"),
    ({"tools": [function(parameters=HUGE)]}, "tools"),
    ({"input": "word " * 3000}, "input"),
]  # fmt: skip
"""What is no fault of the prompt: grammars, what an answer repeats, and the window."""


COUNTED = InputTokensBody.model_fields.keys()


@pytest.mark.parametrize("streams", [False, True])
async def test_what_is_not_served_is_refused_by_name(
    http: Http, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "PATIENCE_S", 60)
    for fields, param in [*REFUSED, *OF_ANSWERS]:
        body = {"model": MODEL, "input": "Hi", "stream": streams} | fields
        answer = await http.raw.post(PATH, content=json.dumps(body))
        assert answer.status_code == 400, (fields, answer.text)
        if fields.keys() <= COUNTED and (fields, param) in REFUSED:
            counted = await http.raw.post(f"{PATH}/input_tokens", json={"input": "Hi"} | fields)
            assert (counted.status_code, counted.json()["error"]["param"]) == (400, param), fields
        error = answer.json()["error"]
        assert error["param"] == param, (fields, error)
        assert error["type"] == "invalid_request_error"
    assert not http.stack.scheduler.added
    for path in (f"{PATH}/resp_1/x", f"{PATH}/compact", "/v1/conversations"):
        missing = await http.raw.post(path, json={})
        assert missing.status_code == 404 and "not " in missing.json()["error"]["message"]


async def test_labels_and_options_without_effect_are_accepted(http: Http) -> None:
    answer = await ask(
        http, store=False, include=list(INCLUDABLE), client_metadata={"a": {"b": 1}},
        prompt_cache_key="k", max_tool_calls=3, truncation="disabled", service_tier="auto",
        safety_identifier="s", background=False, previous_response_id=None, user="u",
        text={"verbosity": "medium"}, reasoning={"effort": "low", "context": "auto"},
    )  # fmt: skip
    assert answer.prompt_cache_key == "k" and answer.reasoning.effort == "low"
    space = {"type": "namespace", "name": "crm", "tools": [function()]}
    schema = {"type": "json_schema", "schema": {"type": "integer"}}
    unnamed = await ask(http, tools=[space], text={"format": schema})
    assert (unnamed.tools[0].description, unnamed.text.format.name) == ("", "")
    prompt = await prompt_of(http, PATH, {"input": "Hi"})
    assert prompt == await prompt_of(http, PATH, {"input": [{"role": "user", "content": "Hi"}]})


def test_hosted_tools_and_includes_are_those_of_the_package() -> None:
    kinds = [get_type_hints(tool)["type"] for tool in get_args(ToolParam)]
    types = {name for kind in kinds for name in get_args(kind)}
    forced = set(get_args(ToolChoiceTypes.model_fields["type"].annotation))
    assert (types | forced) - {"function", "custom", "namespace", "mcp"} == HOSTED
    assert set(INCLUDABLE) == set(get_args(ResponseIncludable))
    assert get_args(ReasoningOptions.model_fields["effort"].annotation) == get_args(ReasoningEffort)


async def test_the_oldest_turns_are_left_out_of_an_input_beyond_the_window() -> None:
    def turn(i: int) -> list[dict[str, Any]]:
        call = CALLED | {"call_id": f"c{i}"}
        return [USER | {"content": f"<{i}>" + "x" * 150}, call, OUTPUT | {"call_id": f"c{i}"}]

    items = [item for i in range(12) for item in turn(i)]
    body = {"instructions": "Be brief.", "input": items, "max_output_tokens": 100}
    async with make_http(max_model_len=1000) as http:
        refused = await http.raw.post(PATH, json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        text = await prompt_of(http, PATH, body | {"truncation": "auto"})
        first = next(i for i in range(12) if f"<{i}>" in text)
        assert all(f"<{i}>" in text for i in range(first, 12)) and first > 0
        assert text.startswith("[system]Be brief.</s>[user]<")
        num_tokens = len(http.stack.scheduler.added[-1].prompt_token_ids)
        one_more = {"input": items[3 * (first - 1) :], "max_output_tokens": 1}
        await prompt_of(http, PATH, body | one_more)
        assert num_tokens <= 900 < len(http.stack.scheduler.added[-1].prompt_token_ids)
        counted = {"instructions": "Be brief.", "input": items, "truncation": "auto"}
        answer = await http.raw.post(f"{PATH}/input_tokens", json=counted)
        assert 900 < answer.json()["input_tokens"] < 1000


async def test_a_stream_that_waits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PATIENCE_S", 0.01)
    monkeypatch.setattr(streaming, "WAIT_S", 0.01)
    async with make_http(lambda add: ()) as http:
        body, text, is_answered = {"model": MODEL, "input": "Hi", "stream": True}, "", False
        async with http.raw.stream("POST", PATH, json=body) as answer:
            async for piece in answer.aiter_text():
                text += piece
                if not is_answered and text.count("event: response.queued") > 1:
                    is_answered = True
                    handle = (await http.stack.added()).handle
                    run = (handle, 0, bytewise_ids("ok"))
                    http.stack.scheduler.send(step(run, **finished(handle)))
    events = read_events(text)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[0] == "created"
    assert set(kinds[1 : kinds.index("in_progress")]) == {"queued"}
    assert events[0].response.status == "queued"
    assert kinds[-1] == "incomplete"


async def test_a_stream_that_fails_ends_with_what_there_is() -> None:
    def script(add: Any) -> Any:
        yield step((add.handle, 0, bytewise_ids("Hel")))

    async with make_http(script) as http:
        body = {"model": MODEL, "input": "Hi", "stream": True, "request_id": "r"}
        async with http.raw.stream("POST", PATH, json=body) as answer:
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                if "Hel" in text:
                    http.stack.router.generator.abort("resp_r")
        events = read_events(text)
    last = events[-1]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error.code == "server_error"
    assert last.response.output[0].status == "incomplete"
    assert last.response.output[0].content[0].text == "Hel"


async def test_an_input_of_many_items_is_read_in_pieces() -> None:
    items = [USER | {"content": f"{i} " + "y" * 200} for i in range(3000)]
    async with make_http(writing("ok"), max_model_len=1 << 21) as http:
        text = await prompt_of(http, PATH, {"input": items})
        assert "[user]2999 " in text
        wrong = await http.raw.post(PATH, json={"input": [*items, USER | {"content": 5}]})
        assert wrong.json()["error"]["param"] == "input[3000].content"
        calls = await http.raw.post(PATH, json={"input": [CALLED] * (MAX_PARTS + 1)})
        assert calls.json()["error"]["param"] == f"input[{MAX_PARTS}]"
        empty = json.dumps({"input": [{}] * 300_000})
        refused = await http.raw.post(PATH, content=empty)
        assert refused.json()["error"]["param"] == "input"
