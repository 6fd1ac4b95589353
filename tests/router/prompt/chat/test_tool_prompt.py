"""Tools for models whose chat template has no place for them, and templates by name or file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.conversation import (
    Conversation,
    Message,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
)
from signalbox_router.prompt.chat.known_templates import known_templates, load_chat_template
from tests.router.apis.inference.test_chat import (
    ASSISTANT,
    CALL,
    TEMPLATE,
    WEATHER,
    ask,
    chat_stack,
    make_chat,
    message,
    prompt_of,
    writing,
)
from tests.router.fakes import CHATML, make_files
from tests.router.stack import make_stack

ADD = Tool("add", "Adds", {"type": "object", "properties": {"a": {"type": "integer"}}})
HI = Message("user", "Hi")
CALLED = Message("assistant", "Let me see.", (ToolCall("c1", "add", {"a": 1}),))
RESULT = Message("tool", "3", tool_call_id="c1")
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('it') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def render(source: str, *messages: Message, **fields: Any) -> str:
    conversation = Conversation(messages=messages or [HI], **{"tools": [ADD]} | fields)
    conversation.check()
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(conversation, max_bytes=1 << 16)


def test_tools_calls_and_results_are_told_in_words() -> None:
    text = render(CHATML, Message("system", "Be brief."), HI, CALLED, RESULT, RESULT)
    system, user, call, results, opening = text.split("<|im_start|>")[1:]
    assert system.startswith("system\nBe brief.\n\n")
    assert f"<tools>\n{json.dumps(ADD.variables())}\n</tools>" in system
    assert user == "user\nHi<|im_end|>\n"
    assert call == (
        'assistant\nLet me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        "<|im_end|>\n"
    )
    response = "<tool_response>\n3\n</tool_response>"
    assert results == f"user\n{response}\n{response}<|im_end|>\n"
    assert opening == "assistant\n"


OF_NINE = (  # the rule of Mistral's templates
    "{% set wrong = 'ids should be alphanumeric strings with length 9' %}{{ tools | length }}"
    "{% for m in messages %}{% for call in m.tool_calls or [] %}"
    "{% if call.id | length != 9 %}{{ raise_exception(wrong) }}{% endif %}<{{ call.id }}>"
    "{% endfor %}{% if m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception(wrong) }}{% endif %}"
    "[{{ m.tool_call_id }}]{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("is_of_client", [False, True])
async def test_foreign_ids_of_calls_become_nine_letters_where_the_template_wants_them(
    is_of_client: bool,
) -> None:
    ids = ["call_0123456789abcdef", "call_2", "a b-c d-e", "toolu_2"]
    calls = [pb.ToolCall(id=one, name="add", arguments="{}") for one in ["abcdefgh9", *ids]]
    results = [message("3", pb.CHAT_ROLE_TOOL, tool_call_id=call.id) for call in calls]
    talk = [message("Hi"), message("", ASSISTANT, tool_calls=calls), *results]
    request = make_chat(*talk, tools=[WEATHER])
    if is_of_client:
        request.chat_template = OF_NINE
    text = await prompt_of(request, template=TEMPLATE if is_of_client else OF_NINE)
    called = re.findall(r"<([a-zA-Z0-9]{9})>", text)
    assert called == re.findall(r"\[([a-zA-Z0-9]{9})\]", text)
    assert called[0] == "abcdefgh9"
    assert len(set(called)) == len(calls)


def test_a_template_that_takes_any_id_gets_the_clients() -> None:
    source = "{{ tools | length }}{% for m in messages %}{{ m.tool_call_id }}{% endfor %}"
    assert render(source, HI, CALLED, RESULT) == "1c1"


def test_a_template_without_system_messages_is_told_in_the_first_turn() -> None:
    text = render(STRICT, HI, CALLED, RESULT, Message("user", "And?"))
    assert text.startswith("[user]You may call functions.")
    assert text.endswith("\n\nHi[assistant]Let me see.\n<tool_call>\n"
                         '{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
                         "[user]<tool_response>\n3\n</tool_response>\nAnd?")  # fmt: skip


def test_reasoning_before_calls_in_words_reaches_the_template() -> None:
    source = "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}"
    text = render(source, HI, CALLED._replace(reasoning="Add."), RESULT)
    assert "[Add.|Let me see.\n<tool_call>" in text


def test_calls_are_told_where_a_template_of_tools_has_no_place_for_them() -> None:
    source = "{{ tools | length }}{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
    text = render(source, HI, CALLED, RESULT)
    assert text.startswith("1[user|Hi][assistant|Let me see.\n<tool_call>\n")
    assert text.endswith("</tool_call>][tool|3]")


def test_text_and_reasoning_before_calls_are_one_where_the_template_refuses_both() -> None:
    source = (  # as GPT-OSS's
        "{{ tools | length }}{% for m in messages %}{% if m.tool_calls and m.content and m.thinking"
        " %}{{ raise_exception('both') }}{% endif %}[{{ m.thinking }}|{{ m.content }}]{% endfor %}"
    )
    text = render(source, HI, CALLED._replace(reasoning="Add."), RESULT)
    assert "[Add.\nLet me see.|]" in text


def test_earlier_calls_are_told_though_no_tools_are_offered() -> None:
    for fields in ({"tools": []}, {"tool_choice": ToolChoice(ToolMode.NONE)}):
        text = render(CHATML, HI, CALLED, RESULT, **fields)
        assert "<tool_call>" in text
        assert "<tools>" not in text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "between tags"),
        ({"parallel_tool_calls": False}, "no more than one function"),
        ({"tool_choice": ToolChoice(ToolMode.REQUIRED)}, '"parameters"'),
        ({"tool_choice": ToolChoice(ToolMode.REQUIRED, "add")}, "arguments of a call of add alone"),
    ],
)
def test_the_model_is_told_what_will_be_read(fields: Any, said: str) -> None:
    text = render(CHATML, **fields)
    assert said in text
    assert ("<tool_call>" in text) is not ("tool_choice" in fields)


@pytest.mark.parametrize("name", known_templates())
def test_every_known_template_shows_tools(name: str) -> None:
    text = render(load_chat_template(name), HI)
    assert '"add"' in text
    assert "Hi" in text
    shown = render(load_chat_template(name), HI, CALLED, RESULT)
    assert shown.index("add") < shown.index("Hi") if name not in ("mistral",) else True
    assert "3" in shown


PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


async def test_calls_of_a_model_without_tools_are_read() -> None:
    async with chat_stack(f"I see.\n{CALL}", template=PLAIN) as stack:
        deltas = await ask(stack, make_chat(tools=[WEATHER]))
        calls = [call for delta in deltas for call in delta.tool_calls]
        assert [call.name for call in calls if call.id] == ["get_weather"]
        assert "".join(delta.text for delta in deltas) == "I see.\n"
        assert deltas[-1].finish.reason == pb.FINISH_REASON_TOOL_CALLS
    said = await prompt_of(make_chat(tools=[WEATHER]), template=PLAIN)
    assert said.startswith("[system]You may call functions.")
    assert said.endswith("[user]Hi")


async def test_a_forced_call_needs_no_place_for_tools() -> None:
    arguments = '{"city": "Paris"}'
    async with chat_stack(arguments, template=PLAIN) as stack:
        chat = make_chat(tools=[WEATHER], tool_choice=pb.ToolChoice(tool="get_weather"))
        deltas = await ask(stack, chat)
        calls = [call for delta in deltas for call in delta.tool_calls]
        assert "".join(call.arguments for call in calls) == arguments


async def test_a_clients_template_without_tools_is_told_in_words() -> None:
    said = await prompt_of(make_chat(tools=[WEATHER], chat_template=STRICT), template=None)
    assert said.startswith("[user]You may call functions.")
    history = [message("Hi"), message("Yes", ASSISTANT)]
    assert await prompt_of(make_chat(*history, chat_template=STRICT)) == "[user]Hi[assistant]Yes"


async def test_a_template_serves_instead_of_the_models() -> None:
    for template in (None, "{{ 'of the model' }}"):
        files = make_files(chat_template=template)
        options = {"files": files, "max_model_len": 2048, "chat_template": "chatml"}
        async with make_stack(writing("ok"), **options) as stack:
            await ask(stack, make_chat())
            assert (await stack.client.GetModel(pb.GetModelRequest())).has_chat_template
            ids = stack.scheduler.added[0].prompt_token_ids
            text = await stack.router.schedulers.models.of().tokenizer.decode(
                ids, skip_special_tokens=False
            )
            assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_is_a_name_or_a_file(tmp_path: Path) -> None:
    assert load_chat_template(None) is None
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[0].content }}")
    assert load_chat_template(str(file)) == "{{ messages[0].content }}"
    broken, empty = tmp_path / "broken.jinja", tmp_path / "empty.jinja"
    broken.write_text("{% if %}")
    empty.write_text(" \n")
    for wrong, why in (
        (str(broken), "no valid template"),
        (str(empty), "is empty"),
        (str(tmp_path), "none of chatml"),
        ("chatmI", "No such file"),
    ):
        with pytest.raises(ValueError, match=why):
            load_chat_template(wrong)
