"""Conversations are rendered as transformers renders them, by each template that ships."""

import itertools
import json
from typing import Any

import pytest
from google.protobuf import struct_pb2
from transformers.utils.chat_template_utils import render_jinja_template

from signalbox.llm.requests.conversations import messages_of, tools_of
from signalbox_contract.errors import InvalidArgument
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference import chat_codec
from signalbox_router.apis.openai.requests.chat_types import ConversationBody
from signalbox_router.apis.openai.requests.conversation_codec import conversation_of
from signalbox_router.prompt.chat.chat_template import ChatTemplate
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.chat.known_templates import known_templates, load_chat_template
from signalbox_router.prompt.chat.template_facts import ContentForm, facts_of

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM = {"role": "system", "content": " Be brief. "}
HI = {"role": "user", "content": "Hi, Zoë "}
ANSWER = {"role": "assistant", "content": " Hello! "}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, "é"]}},
}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "3", "tool_call_id": "abcdefghi", "name": "add"}
TOOLS = [
    {"type": "function", "function": {"name": "add"}},
    {"type": "function", "function": {"name": "sub", "description": "Takes away"}},
    {
        "type": "function",
        "function": {
            "name": "mul",
            "description": "Multiplies",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    },
]
TALKS = [
    [HI],
    [SYSTEM, HI],
    [HI, ANSWER, HI],
    [SYSTEM, HI, ANSWER, HI],
    [HI, ANSWER],
    [HI, {"role": "assistant", "content": "Well, I "}],
    [HI, {"role": "assistant", "content": "Well,\n"}],
]
TOOL_TALKS = [[HI, CALLED, RESULT], [SYSTEM, HI, CALLED, RESULT, RESULT, ANSWER, HI]]
FOREIGN = {
    "parts": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}<{{ p.text | trim }}>{% endfor %}{% endif %}|{% endfor %}{{ budget }}",
    "trims": "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}{% endfor %} end"
    "{% if add_generation_prompt %}>{% endif %}{{ budget + 1 if budget else '' }}",
    "indented": "{%- for m in messages %}\n  {{- m.content }}\n{%- endfor %}\n"
    "{%- if tools %}\n{{ tools | tojson(indent=2) }}{% endif %}",
}


def source_of(name: str) -> str:
    return FOREIGN[name] if name in FOREIGN else load_chat_template(name)


def by_transformers(source: str, talk: Any, **options: Any) -> str | None:
    """None if the template refuses the conversation."""
    try:
        rendered, _ = render_jinja_template([talk], chat_template=source, **SPECIAL, **options)
    except Exception:
        return None
    return str(rendered[0])


def over_http(talk: Any, **options: Any) -> Any:
    body = json.loads(json.dumps({"messages": talk, **options}))
    for message in body["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return conversation_of(ConversationBody.model_validate(body))


def in_process(
    talk: Any, *, tools: Any = None, chat_template_kwargs: Any = None, **options: Any
) -> Any:
    options["template_kwargs"] = chat_template_kwargs or {}
    made = Conversation(
        messages=messages_of(talk, field="messages"), tools=tools_of(tools), **options
    )
    made.check()
    return made


@pytest.mark.parametrize("name", [*known_templates(), *FOREIGN])
def test_every_template_renders_as_in_transformers(name: str) -> None:
    source = source_of(name)
    template = ChatTemplate(source, special_tokens=SPECIAL)
    takes_tools, takes_calls, _ = facts_of(source)
    talks = TALKS + (TOOL_TALKS if takes_tools and takes_calls else [])
    num_rendered = 0
    modes = [(True, False), (False, False), (False, True)]
    for talk, (opens, continues), tools in itertools.product(
        talks, modes, (None, TOOLS) if takes_tools else (None,)
    ):
        options = {
            "tools": tools,
            "add_generation_prompt": opens,
            "continue_final_message": continues,
        }
        wanted = by_transformers(source, talk, **options, budget=512)
        for read in (over_http, in_process):
            asked = read(talk, chat_template_kwargs={"budget": 512}, **options)
            try:
                text = template.render(asked, max_bytes=1 << 20)
            except InvalidArgument:
                assert wanted is None, (talk, options)
            else:
                assert text == wanted, (talk, options, read)
                num_rendered += 1
    assert num_rendered > 20


def test_a_template_changes_lists_and_dictionaries_of_one_rendering_alone() -> None:
    source = (
        "{% set ids = ['a'] %}{% set names = {} %}{% for m in messages %}"
        "{% set _ = ids.append(m.content) %}{% set _ = names.update(last=ids.pop(0)) %}"
        "{% set _ = m.clear() %}{% endfor %}{% set _ = messages.pop() %}"
        "{{ ids }}{{ names.last }}{{ messages | length }}"
    )
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>"})
    talk = in_process([HI, {"role": "assistant", "content": "b"}])
    for _ in range(2):
        assert template.render(talk, max_bytes=1000) == "['b']Hi, Zoë 1"


@pytest.mark.parametrize("ending", ["", " ", "\n", " x ", "\t\n"])
@pytest.mark.parametrize("name", ["chatml", "trims"])
def test_a_continued_message_ends_where_the_template_ends_it(name: str, ending: str) -> None:
    talk = [HI, {"role": "assistant", "content": f"Well{ending}"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    wanted = by_transformers(source_of(name), talk, **options)
    template = ChatTemplate(source_of(name), special_tokens=SPECIAL)
    assert template.render(in_process(talk, **options), max_bytes=1000) == wanted


LOOPS = (
    "{% for m in messages %}{% for part in m['content'] %}<{{ part.text }}>{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "form", "text"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ContentForm.JOINED, "a\nbc"),
        (FOREIGN["parts"], ContentForm.PARTS, "<a><b>|c|"),
        (LOOPS, ContentForm.LIST, "<a><b><c>"),
        (LOOPS.replace("{% for part in m['content']", "{% set x = m.content %}{% for part in x"),
         ContentForm.LIST, "<a><b><c>"),
    ],
)  # fmt: skip
def test_parts_are_joined_by_a_newline_unless_the_template_goes_through_them(
    source: str, form: ContentForm, text: str
) -> None:
    assert facts_of(source).content_form is form
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    talk = [{"role": "user", "content": parts}, {"role": "user", "content": "c"}]
    template = ChatTemplate(source, special_tokens={})
    for read in (over_http, in_process):
        assert template.render(read(talk), max_bytes=100) == text


def test_whole_numbers_are_integers_to_a_template() -> None:
    values = {"n": 512, "deep": [{"x": 1}, 0.5], "yes": True, "huge": 1e300, "none": None}
    template = ChatTemplate("{{ n }} {{ deep }} {{ yes }} {{ none }}", special_tokens={})
    for asked in (over_http([HI], chat_template_kwargs=values), _over_grpc(values)):
        text = template.render(asked, max_bytes=1000)
        assert text == "512 [{'x': 1}, 0.5] True None"
        assert asked.template_kwargs["huge"] == 1e300
        assert isinstance(asked.template_kwargs["huge"], float)


def _over_grpc(values: dict[str, Any]) -> Any:
    struct = struct_pb2.Struct()
    struct.update(values)
    said = pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=[pb.ContentPart(text="Hi")])
    request = pb.ChatRequest(messages=[said])
    for name, value in struct.fields.items():
        request.chat_template_kwargs[name].CopyFrom(value)
    return chat_codec.conversation(request)
