"""Chat over gRPC: tools, templates of clients, continued messages; the scheduler is a fake."""

import json
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.params.structured_output_check import MAX_BYTES, MAX_RULES_CHARS
from signalbox_router.prompt.chat.conversation import MAX_TOOLS
from tests.router.fakes import (
    EOS,
    bytewise_ids,
    finished,
    make_files,
    make_tokenizer,
    step,
    token,
)
from tests.router.stack import Outputs, Stack, make_stack

StatusCode = grpc.StatusCode

TEMPLATE = (
    "{% if tools %}<tool_call> {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}{{ m.name or '' }}{{ m.tool_call_id or '' }}]"
    "{{ m.content | trim }}{% for call in m.tool_calls or [] %}{{ call.function | tojson }}"
    "{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{{ mood }}{% endif %}"
)
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'
WEATHER = pb.Tool(name="get_weather", description="Tells the weather", parameters=SCHEMA)
REQUIRED = pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED)
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def message(text: str, role: int = pb.CHAT_ROLE_USER, **fields: Any) -> pb.ChatMessage:
    content = [pb.ContentPart(text=text)] if text else []
    return pb.ChatMessage(role=role, content=content, **fields)  # type: ignore[arg-type]


def make_chat(*messages: pb.ChatMessage, **fields: Any) -> pb.ChatRequest:
    return pb.ChatRequest(messages=messages or [message("Hi")], **fields)


def writing(text: str, *, reason: int = scheduler_pb2.FINISH_REASON_STOP) -> Any:
    """Returns a script that answers with one token a step, for each byte of the text.

    All sequences of a request get the same.
    """

    def script(add: scheduler_pb2.Request) -> Outputs:
        indices = range(add.num_sequences)
        for token_id in bytewise_ids(text):
            yield step(*((add.handle, index, [token_id]) for index in indices))
        end = [token(EOS)] if reason == scheduler_pb2.FINISH_REASON_STOP else []
        runs = [(add.handle, index, end) for index in indices]
        yield step(*runs, **finished(add.handle, reason, num_sequences=add.num_sequences))

    return script


def chat_stack(text: str = "ok", template: str = TEMPLATE, **options: Any) -> Any:
    files = make_files(chat_template=template)
    return make_stack(writing(text), files=files, max_model_len=2048, **options)


async def ask(stack: Stack, request: pb.ChatRequest) -> list[pb.SequenceDelta]:
    return [output async for answer in stack.client.Chat(request) for output in answer.outputs]


async def prompt_of(request: pb.ChatRequest, **options: Any) -> str:
    """Returns what the scheduler was sent, as text."""
    async with chat_stack(**options) as stack:
        await ask(stack, request)
        ids = stack.scheduler.added[0].prompt_token_ids
        return await make_tokenizer().decode(ids, skip_special_tokens=False)


async def test_calls_are_parsed_out_of_the_text() -> None:
    async with chat_stack(f"Let me see.\n{CALL}") as stack:
        deltas = await ask(stack, make_chat(tools=[WEATHER]))
        assert "".join(delta.text for delta in deltas) == "Let me see.\n"
        calls = [call for delta in deltas for call in delta.tool_calls]
        assert [call.name for call in calls if call.id] == ["get_weather"]
        assert "".join(call.arguments for call in calls) == '{"city": "Paris"}'
        assert deltas[-1].finish.reason == pb.FINISH_REASON_TOOL_CALLS
        assert sum(len(delta.token_ids) for delta in deltas) > len(CALL)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": [WEATHER], "tool_choice": {"mode": pb.TOOL_CHOICE_MODE_NONE}}],
)
async def test_without_tools_text_is_left_alone(fields: Any) -> None:
    async with chat_stack(CALL) as stack:
        deltas = await ask(stack, make_chat(**fields))
        assert "".join(delta.text for delta in deltas) == CALL
        assert deltas[-1].finish.reason == pb.FINISH_REASON_STOP
    assert "get_weather" not in await prompt_of(make_chat(**fields))


async def test_a_call_may_take_the_place_of_a_structured_output() -> None:
    params = pb.SamplingParams(structured_output={"json_object": {}})  # type: ignore[arg-type]
    async with chat_stack(CALL) as stack:
        deltas = await ask(stack, make_chat(tools=[WEATHER], sampling_params=params))
        assert deltas[-1].finish.reason == pb.FINISH_REASON_TOOL_CALLS
        await ask(stack, make_chat(sampling_params=params))
        first, second = (one.sampling_params.structured_output for one in stack.scheduler.added)
        assert first.HasField("json_object") and second.HasField("json_object")
        assert "<tool_call>" in first.rules and not second.rules


@pytest.mark.parametrize(("setting", "kind"), [("auto", "rules"), ("none", "json_schema")])
async def test_schemas_of_forced_calls_are_bounded_as_rules_are(setting: str, kind: str) -> None:
    template = TEMPLATE.replace("tools | tojson", "tools | length")
    parameters = [json.dumps({"title": "T" * num}) for num in (MAX_BYTES, MAX_RULES_CHARS)]
    async with chat_stack(CALL, template, tool_call_parser=setting) as stack:
        fits, exceeds = (
            make_chat(tools=[pb.Tool(name="f", parameters=one)], tool_choice=REQUIRED)
            for one in parameters
        )
        await ask(stack, fits)
        (added,) = stack.scheduler.added
        assert len(getattr(added.sampling_params.structured_output, kind)) > MAX_BYTES
        with pytest.raises(grpc.aio.AioRpcError, match=f"at most {MAX_RULES_CHARS}") as caught:
            await ask(stack, exceeds)
        assert (caught.value.details() or "").startswith("tools: ")


async def test_a_thousand_tools_may_be_offered_and_the_last_be_called() -> None:
    template = TEMPLATE.replace("tools | tojson", "tools | length")
    tools = [pb.Tool(name=f"t{i}", parameters=SCHEMA) for i in range(MAX_TOOLS)]
    last = pb.ToolChoice(tool=tools[-1].name)
    async with chat_stack(CALL, template) as stack:
        await ask(stack, make_chat(tools=tools, tool_choice=last))
        rules = stack.scheduler.added[0].sampling_params.structured_output.rules
        assert f"tools.{MAX_TOOLS - 1}.parameters" in rules and '"t1"' not in rules
        await ask(stack, make_chat(tools=tools))
        with pytest.raises(grpc.aio.AioRpcError, match=f"at most {MAX_TOOLS}"):
            await ask(stack, make_chat(tools=[*tools, WEATHER]))


async def test_the_setting_none_leaves_calls_in_the_text() -> None:
    async with chat_stack(CALL, tool_call_parser="none") as stack:
        deltas = await ask(stack, make_chat(tools=[WEATHER]))
        assert "".join(delta.text for delta in deltas) == CALL


async def test_a_marker_that_is_a_special_token_is_seen_with_tools_alone() -> None:
    # <|im_start|> plays the marker: a special token, which is left out of other texts.
    files = make_files(chat_template=TEMPLATE)
    settings = json.loads(files["tokenizer.json"])
    renamed = json.dumps(settings).replace("<|im_start|>", "<|python_tag|>")
    files["tokenizer.json"] = renamed.encode()

    call = '{"name": "get_weather", "parameters": {}}'
    spelled = 'It writes <|python_tag|>{"name": "f", "parameters": {}}'

    def script(add: scheduler_pb2.Request) -> Outputs:
        ids = [token("<|im_start|>"), *bytewise_ids(call)]
        if add.sampling_params.seed == 1:
            ids = bytewise_ids(spelled)
        yield step((add.handle, 0, ids), **finished(add.handle))

    template = TEMPLATE.replace("<tool_call>", "<|python_tag|>")
    files |= {"tokenizer_config.json": json.dumps({"chat_template": template}).encode()}
    async with make_stack(script, files=files, max_model_len=2048) as stack:
        (delta,) = await ask(stack, make_chat(tools=[WEATHER]))
        assert [call.name for call in delta.tool_calls] == ["get_weather"]
        assert delta.text == ""
        (delta,) = await ask(stack, make_chat())
        assert delta.text == call
        params = pb.SamplingParams(seed=1)
        (delta,) = await ask(stack, make_chat(tools=[WEATHER], sampling_params=params))
        assert delta.text == spelled
        assert not delta.tool_calls  # spelled out, it is no marker
        strict = pb.Tool(name="get_weather", strict=True)
        (delta,) = await ask(stack, make_chat(tools=[strict]))
        assert [call.name for call in delta.tool_calls] == ["get_weather"]
        params = [one.sampling_params for one in stack.scheduler.added]
        assert not any(one.HasField("structured_output") for one in params[:-1])
        assert params[-1].structured_output.rules.startswith("start: calls\n")
        assert params[-1].constraint_scope == common_pb2.ConstraintScope(
            marker_token_ids=[token("<|im_start|>")], is_repeated=True
        )


async def test_tools_calls_and_results_are_rendered() -> None:
    call = pb.ToolCall(id="c1", name="get_weather", arguments='{"city": "Paris"}')
    prompt = await prompt_of(
        make_chat(
            message("Weather?"),
            message("", pb.CHAT_ROLE_ASSISTANT, tool_calls=[call]),
            message("Rain", pb.CHAT_ROLE_TOOL, tool_call_id="c1", name="w"),
            tools=[WEATHER],
            chat_template_kwargs={"mood": struct_pb2.Value(string_value="glad")},
        )
    )
    assert '{"type": "function", "function": {"name": "get_weather", "description"' in prompt
    assert prompt.endswith(
        '[user]Weather?</s>[assistant]{"name": "get_weather", "arguments": {"city": "Paris"}}</s>'
        "[toolwc1]Rain</s>[assistant]glad"
    )


async def test_a_last_message_that_is_continued_is_left_open() -> None:
    talk = [message("Hi"), message(" Well, I ", pb.CHAT_ROLE_ASSISTANT)]
    prompt = await prompt_of(make_chat(*talk, continue_final_message=True))
    assert prompt == "[user]Hi</s>[assistant]Well, I"  # the template trims


async def test_a_clients_template_is_used_instead() -> None:
    template = "{{ bos_token }}{% for m in messages %}<{{ m.content }}>{% endfor %}"
    prompt = await prompt_of(make_chat(message("Hé"), chat_template=template))
    assert prompt == "<s><Hé>"
    open_template = template.replace(">{% endfor", " !{% endfor")
    request = make_chat(message("Hé"), chat_template=open_template, continue_final_message=True)
    assert await prompt_of(request, template=None) == "<s><Hé"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('no') }}", "no"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "2 s"),
        ("{{ 'a' * 10 ** 10 }}", "MiB"),
        ("{{ 'a' * 10 ** 7 }}", "bytes"),
        ("{% set n = namespace(x='a' * 999) %}{% for i in range(40) %}"
         "{% set n.x = n.x ~ n.x %}{% endfor %}", "MiB"),
        ("", "bytes"),
        ("x" * 70_000, "bytes"),
        ("{{ " + "1+" * 20_000 + "1 }}", "recursion"),
    ],
)  # fmt: skip
async def test_a_template_that_fails_or_takes_too_much_is_refused(template: str, why: str) -> None:
    async with chat_stack() as stack:
        request = make_chat(chat_template=template)
        with pytest.raises(grpc.aio.AioRpcError, match=why) as caught:
            await ask(stack, request)
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith("chat_template: ")
        assert stack.scheduler.added == []


ASSISTANT = pb.CHAT_ROLE_ASSISTANT


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("tool_choice.tool", make_chat(tools=[WEATHER], tool_choice={"tool": "add"})),
        ("tool_choice", make_chat(tools=[WEATHER], tool_choice=REQUIRED, sampling_params={
            "structured_output": {"regex": "x"}})),
        ("continue_final_message", make_chat(
            chat_template="{{ messages | length }}", continue_final_message=True)),
    ],
)  # fmt: skip
async def test_a_chat_that_makes_no_sense_is_refused(field: str, request_: pb.ChatRequest) -> None:
    async with chat_stack() as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stack, request_)
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith(f"{field}: ")
        assert stack.scheduler.added == []
