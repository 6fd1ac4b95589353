"""What the model is told of a body of the Messages API, and what is left out or refused."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import pytest
from anthropic.types import ToolUnionParam
from anthropic.types.beta import (
    BetaMemoryTool20250818Command,
    BetaToolUnionParam,
)
from typing_extensions import get_type_hints

from signalbox_router.apis.agents import OMITTED_HEADER, encode_reasoning
from signalbox_router.apis.messages.client_tools import CLIENT_TOOLS
from signalbox_router.apis.messages.conversation_codec import HOSTED, read_conversation
from signalbox_router.apis.messages.types import CountTokensBody, MessageParam, family_of
from tests.router.apis.inference.test_chat import TEMPLATE
from tests.router.apis.messages.clients import HI, SCHEMA, WEATHER, make_messages
from tests.router.fakes import make_files
from tests.router.prompt.chat.test_message_order import copies_of_parts

REASONING = (
    "{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"
)
USE = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Paris"}}
CALLED = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def text(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def result(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "a", "content": content, **fields}


def user(*content: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [text(one) if isinstance(one, str) else one for one in content],
    }


def assistant(*content: Any) -> dict[str, Any]:
    return user(*content) | {"role": "assistant"}


def system(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": content, **fields}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"system": "A"}, "[system]A</s>[user]Hi</s>[assistant]"),
        ({"system": [text("A", cache_control={"type": "ephemeral"}), text("B")]},
         "[system]A\nB</s>[user]Hi</s>[assistant]"),
        ({"system": "A", "messages": [system("B"), *HI]},
         "[system]A\nB</s>[user]Hi</s>[assistant]"),
        ({"messages": [*HI, system("A")]}, "[user]Hi</s>[system]A</s>[assistant]"),
        ({"messages": [*HI, system([text("A")], clear_at="next_user_message")]},
         "[user]Hi</s>[system]A</s>[assistant]"),
        ({"messages": [*HI, system("A", clear_at="next_user_message"), *HI]},
         "[user]Hi\nHi</s>[assistant]"),
        ({"messages": [*HI, user("A", "B")]}, "[user]Hi\nA\nB</s>[assistant]"),
        ({"messages": [*HI, assistant("A")]}, "[user]Hi</s>[assistant]A"),
        ({"messages": [*HI, assistant("A", USE), user(result("C"), "D")]},
         f"[user]Hi</s>[assistant]A{CALLED}</s>[toola]C</s>[user]D</s>[assistant]"),
        ({"messages": [*HI, assistant("A", USE), user("D", result("C"))]},
         f"[user]Hi</s>[assistant]A{CALLED}</s>[toola]C</s>[user]D</s>[assistant]"),
        ({"messages": [*HI, assistant("A"), assistant(USE), user(result([text("C"), text("D")]))]},
         f"[user]Hi</s>[assistant]A{CALLED}</s>[toola]C\nD</s>[assistant]"),
        ({"messages": [*HI, assistant(USE), user(result("C", is_error=True)), user(result())]},
         f"[user]Hi</s>[assistant]{CALLED}</s>[toola]Error:\nC</s>[toola]</s>[assistant]"),
    ],
)  # fmt: skip
async def test_blocks_are_messages_in_their_order(fields: dict[str, Any], prompt: str) -> None:
    async with make_messages() as messages:
        assert await messages.prompt(**fields) == prompt


def test_the_parts_of_one_turn_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = copies_of_parts(monkeypatch)
    body = CountTokensBody(messages=[MessageParam(**HI[0])] * 50)
    assert [len(one.parts) for one in read_conversation(body).conversation.messages] == [50]
    assert copies == [50]


async def test_reasoning_comes_back_by_its_signature_and_what_does_not_decode_is_named() -> None:
    own = {"type": "thinking", "thinking": "", "signature": encode_reasoning("I see.")}
    redacted = {"type": "redacted_thinking", "data": encode_reasoning("And so.")}
    foreign = {"type": "thinking", "thinking": "Well.", "signature": "EqQBCkYICxgCKkDY"}
    sent = [*HI, assistant(own, redacted, "A"), *HI, assistant(foreign, "B"), *HI]
    async with make_messages(files=make_files(chat_template=REASONING)) as messages:
        prompt = await messages.prompt(messages=sent)
        whole = await messages.whole(messages=sent)
        start, *_ = await messages.events(messages=sent)
        named = await messages.whole(
            headers={"anthropic-beta": "thinking-binding-controls-2026-08-01"}
        )
        other = await messages.whole()
    assert prompt == "[user]|Hi[assistant]I see.\nAnd so.|A[user]|Hi[assistant]|B[user]|Hi"
    dropped = {
        "type": "thinking_dropped",
        "path": "messages.3.content.0",
        "reason": "model_binding_mismatch",
    }
    assert whole["input_transformations"] == [dropped]
    assert start["message"]["input_transformations"] == [dropped]
    assert named["input_transformations"] == []
    assert "input_transformations" not in other


async def test_hosted_tools_are_left_out_and_named() -> None:
    hidden = WEATHER | {"name": "hidden", "allowed_callers": ["code_execution_20250825"]}
    async with make_messages() as messages:
        prompt = await messages.prompt(tools=[SEARCH, WEATHER, hidden])
        answer = await messages.post(tools=[SEARCH, WEATHER, hidden])
        counted = await messages.post("/v1/messages/count_tokens", max_tokens=None, tools=[SEARCH])
        nameless = [{"type": "computer_toolset_20990101"}, WEATHER]
        chosen = await messages.post(tools=nameless, tool_choice={"type": "auto"})
        none = await messages.post(tools=[WEATHER])
    assert "get_weather" in prompt and "web_search" not in prompt and "hidden" not in prompt
    assert answer.headers[OMITTED_HEADER] == "web_search_20250305, hidden"
    assert answer.json()["metadata"] == {"omitted_tools": "web_search_20250305, hidden"}
    assert counted.headers[OMITTED_HEADER] == "web_search_20250305"
    assert chosen.status_code == 200, chosen.text
    assert OMITTED_HEADER not in none.headers and "metadata" not in none.json()


async def test_tools_of_the_client_that_the_api_defines_are_told_to_the_model() -> None:
    bash = {"type": "bash_20250124", "name": "bash", "cache_control": {"type": "ephemeral"}}
    example = {"city": "Rome"}
    long = "mcp__server__" + "a" * 115  # as long as this API allows
    custom = WEATHER | {"type": "custom", "input_examples": [example], "name": long}
    async with make_messages() as messages:
        prompt = await messages.prompt(tools=[bash, custom])
    tools = json.loads(prompt.partition("<tool_call> ")[2].partition("\n")[0])
    assert [tool["function"]["name"] for tool in tools] == ["bash", long]
    assert set(tools[0]["function"]["parameters"]["properties"]) == {"command", "restart"}
    assert tools[1]["function"]["parameters"] == SCHEMA | {"examples": [example]}


def test_each_type_of_tool_of_the_api_is_served_or_left_out() -> None:
    types = {
        family_of(name)
        for union in (ToolUnionParam, BetaToolUnionParam)
        for tool in get_args(union)
        for name in literals(get_type_hints(tool)["type"])
    }
    assert types - {"custom", "mcp_toolset"} == {*CLIENT_TOOLS, *HOSTED}


def literals(hint: Any) -> set[str]:
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return {name for part in get_args(hint) for name in literals(part)}


def test_the_arguments_of_the_memory_tool_are_those_of_the_api() -> None:
    kinds = get_args(get_args(BetaMemoryTool20250818Command)[0])
    known: Mapping[str, Any] = CLIENT_TOOLS["memory"].parameters["properties"]
    names = {name for kind in kinds for name in kind.model_fields}
    commands = {literal for kind in kinds for literal in literals(kind.__annotations__["command"])}
    assert names == set(known)
    assert commands == set(known["command"]["enum"])


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
FORCED = {"tool_choice": {"type": "tool", "name": "web_search"}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [user(IMAGE)]}, r"messages\[0\]\.content\[0\].*'image block'"),
        ({"messages": [user({"type": "document"})]}, r"content\[0\].*'document block'"),
        ({"messages": [*HI, user(result([IMAGE]))]},
         r"messages\[1\]\.content\[0\]\.content\[0\].*'image block'"),
        ({"messages": [user(USE)]}, r"messages\[0\]\.content\[0\]: no message of the user"),
        ({"messages": [*HI, assistant(USE)]}, "tool_use block without its tool_result"),
        ({"messages": [{"role": "user", "content": []}]}, r"messages\[0\]\.content: it is empty"),
        ({"messages": [user({"text": "A"})]}, r"content\[0\].*an object with a type"),
        ({"messages": [HI[0] | {"clear_at": "never"}]}, r"messages\[0\]\.clear_at"),
        ({"messages": []}, "messages: "),
        ({"tools": [SEARCH], **FORCED}, "tool_choice.name: web_search_20250305 is not served"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice: there are no tools"),
        ({"tools": [WEATHER], **FORCED}, "tool_choice.name: .*the name of one of tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, r"tools\[0\]: mcp_toolset"),
        ({"tools": [{"type": "fly", "name": "x"}]}, r"tools\[0\]\.type: .*and not 'fly'"),
        ({"tools": [SEARCH, WEATHER, WEATHER | {"name": "no name"}]}, r"tools\[2\]\.name: "),
        ({"tools": [{"name": "x"}]}, r"tools\[0\]\.input_schema: Field required"),
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers: "),
        ({"container": "x"}, "container: "),
        ({"thread": {"type": "create"}}, "thread: "),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"output_config": {"effort": "most"}}, "output_config.effort"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 5}}}, "task_budget"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}},
         "output_config.format.schema: "),
        ({"output_format": {"type": "json_schema", "schema": {"type": "nothing"}}},
         "output_format.schema: "),
        ({"tools": [SEARCH, WEATHER | {"input_schema": {"type": "no"}}],
          "tool_choice": {"type": "any"}}, r"tools\[1\]\.input_schema: "),
        ({"output_config": {"format": FORMAT}, "output_format": FORMAT},
         r"output_format: output_config\.format is set"),
        ({"stop_sequences": [""]}, "stop_sequences: "),
        ({"max_tokens": -1}, "max_tokens: "),
        ({"temperature": 3.0}, "temperature: "),
        ({"max_token": 3}, "did you mean max_tokens"),
    ],
)  # fmt: skip
async def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    async with make_messages() as messages:
        answer = await messages.post(**fields)
        counted = await messages.post("/v1/messages/count_tokens", **{"max_tokens": None} | fields)
        assert not messages.http.stack.scheduler.added
    assert answer.status_code == 400
    error = answer.json()["error"]
    if fields.keys() <= CountTokensBody.model_fields.keys() and "schema: " not in named:
        assert (counted.status_code, counted.json()["error"]) == (400, error)
    assert error["type"] == "invalid_request_error"
    assert re.search(named, error["message"]), error["message"]


VARIABLES = "{{ enable_thinking }} {{ reasoning_effort }}"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, " "),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "True high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "True "),
        ({"thinking": {"type": "disabled"}}, "False "),
    ],
)
async def test_thinking_is_a_variable_of_the_template(fields: dict[str, Any], prompt: str) -> None:
    async with make_messages(files=make_files(chat_template=VARIABLES)) as messages:
        assert await messages.prompt(**fields) == prompt


async def test_a_call_is_forced_and_one_alone_as_in_chats() -> None:
    """The scheduler gets the constraint that a chat with the same meaning has."""
    function = {key: value for key, value in WEATHER.items() if key != "input_schema"}
    tools = [{"type": "function", "function": function | {"parameters": SCHEMA}}]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    output = {"format": {"type": "json_schema", "schema": schema}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    named = {"type": "function", "function": {"name": "get_weather"}}
    alike: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
         {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}},
         {"tools": tools, "tool_choice": named}),
        ({"tools": [WEATHER], "tool_choice": {"type": "none"}},
         {"tools": tools, "tool_choice": "none"}),
        ({"tools": [WEATHER], "output_config": output},
         {"tools": tools, "response_format": wanted}),
        ({"output_format": output["format"]}, {"response_format": wanted}),
        ({"temperature": 0.5, "top_p": 0.5, "top_k": 5, "stop_sequences": ["END"]},
         {"temperature": 0.5, "top_p": 0.5, "top_k": 5, "stop": ["END"]}),
    ]  # fmt: skip
    async with make_messages(files=make_files(chat_template=TEMPLATE)) as messages:
        for ours, chats in alike:
            await messages.post(**ours)
            body = {"messages": HI, "max_tokens": 64, **chats}
            await messages.http.raw.post("/v1/chat/completions", json=body)
            one, other = messages.http.stack.scheduler.added[-2:]
            assert one.prompt_token_ids == other.prompt_token_ids
            one.sampling_params.seed = other.sampling_params.seed
            assert one.sampling_params == other.sampling_params
