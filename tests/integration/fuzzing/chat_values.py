"""What the fields that only ChatRequest has may be and may not be, as strategies of requests.

Each is merged into a request that is served. A field that is in no table fails
`test_every_field_that_only_a_chat_has_is_in_a_table`.
"""

import json
from typing import Any

from google.protobuf import struct_pb2
from hypothesis import strategies as st

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.prompt.chat.conversation import MAX_TOOLS
from tests.integration.fuzzing.bad_values import INT32, Bad, make_chat, too_long, unprintable

TEXTS = st.text(max_size=12)
ROLES = st.sampled_from(
    [pb.CHAT_ROLE_SYSTEM, pb.CHAT_ROLE_USER, pb.CHAT_ROLE_ASSISTANT, pb.CHAT_ROLE_TOOL]
)
NO_ENUM = st.integers(5, INT32) | st.integers(-INT32 - 1, -1) | st.just(0)
BROKEN = st.sampled_from(["[]", "1", "null", '"a"', "{", "{'a': 1}", '{"a"'])
NO_OBJECT = BROKEN | st.just("[" * 5000)
NO_TOOL_NAME = st.sampled_from(["", "a b", "ä", "a" * 129]) | unprintable()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXTS, JSON_VALUES, max_size=3).map(json.dumps)
CALLED = st.just("") | OBJECTS | BROKEN
"""Arguments of an earlier call."""
NAMES = st.from_regex(r"[a-zA-Z0-9_.-]{1,64}", fullmatch=True)


def text_part(text: str) -> pb.ContentPart:
    return pb.ContentPart(text=text)


def with_message(**fields: Any) -> pb.ChatRequest:
    """The message comes behind the one that there is."""
    fields = {"role": pb.CHAT_ROLE_USER, "content": [text_part("a")]} | fields
    return pb.ChatRequest(messages=[pb.ChatMessage(**fields)])


def with_tools(*tools: pb.Tool) -> pb.ChatRequest:
    return pb.ChatRequest(tools=tools)


def with_arguments(arguments: str) -> pb.ChatRequest:
    call = pb.ToolCall(id="1", name="f", arguments=arguments)
    return with_message(role=pb.CHAT_ROLE_ASSISTANT, tool_calls=[call])


def with_variable(name: str, value: Any) -> pb.ChatRequest:
    request = pb.ChatRequest()
    request.chat_template_kwargs[name].CopyFrom(value)
    return request


def chosen(**choice: Any) -> pb.ChatRequest:
    return pb.ChatRequest(tools=[pb.Tool(name="f")], tool_choice=pb.ToolChoice(**choice))


def json_value(value: object) -> struct_pb2.Value:
    wrapper = struct_pb2.ListValue()
    wrapper.append(value)  # type: ignore[arg-type]
    return wrapper.values[0]


NO_JSON = st.sampled_from(["nan", "inf", "-inf"]).map(
    lambda number: struct_pb2.Value(number_value=float(number))
)
BAD: dict[str, list[Bad]] = {
    "messages.role": [
        Bad(st.builds(lambda role: with_message(role=role), NO_ENUM), "messages[1].role")
    ],
    "messages.content": [
        Bad(st.just(with_message(content=[])), "messages[1].content"),
        Bad(
            st.builds(
                lambda n: with_message(content=[text_part("a")] * n + [pb.ContentPart()]),
                st.just(2),
            ),
            "messages[1].content[2]",
        ),
    ],
    "messages.tool_calls": [
        Bad(st.just(with_arguments("[" * 5000)), "messages[1].tool_calls[0].arguments")
    ],
    "add_generation_prompt": [
        Bad(st.just(pb.ChatRequest(add_generation_prompt=True, continue_final_message=True)))
    ],
    "chat_template": [Bad(st.builds(lambda text: pb.ChatRequest(chat_template=text), st.just("")))],
    "tools": [
        Bad(NO_TOOL_NAME.map(lambda name: with_tools(pb.Tool(name=name))), "tools[0].name"),
        Bad(NAMES.map(lambda name: with_tools(*[pb.Tool(name=name)] * 2)), "tools[1].name"),
        Bad(
            NO_OBJECT.map(lambda text: with_tools(pb.Tool(name="f", parameters=text))),
            "tools[0].parameters",
        ),
        Bad(
            st.integers(MAX_TOOLS + 1, MAX_TOOLS + 9).map(
                lambda n: with_tools(*(pb.Tool(name=str(i)) for i in range(n)))
            )
        ),
    ],
    "tool_choice": [
        Bad(NO_ENUM.map(lambda mode: chosen(mode=mode)), "tool_choice.mode"),
        Bad(NO_TOOL_NAME.filter(bool).map(lambda name: chosen(tool=name)), "tool_choice.tool"),
        Bad(st.just(pb.ChatRequest(tool_choice=pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED)))),
    ],
    "chat_template_kwargs": [
        Bad(
            st.builds(
                with_variable,
                st.sampled_from(["messages", "tools", "add_generation_prompt", "", "a b", "1"]),
                JSON_VALUES.map(json_value),
            )
        ),
        Bad(st.builds(with_variable, st.just("x"), NO_JSON)),
    ],
}
"""By the field, of which the refusal names a part or the whole."""
BAD["chat_template"].append(
    Bad(too_long(64 << 10).map(lambda text: pb.ChatRequest(chat_template=text)))
)

ANY = {
    "continue_final_message",
    "parallel_tool_calls",
    "parse_special_tokens",
    "messages.name",
    "messages.tool_call_id",
    "messages.reasoning",
    "thinking",
}
"""Every value is legal, beside what else `chats` draws."""


@st.composite
def messages(draw: st.DrawFn) -> pb.ChatMessage:
    role = draw(ROLES)
    message = pb.ChatMessage(role=role, content=map(text_part, draw(st.lists(TEXTS, min_size=1))))
    message.name, message.tool_call_id = draw(TEXTS), draw(TEXTS)
    message.reasoning = draw(TEXTS)
    if role == pb.CHAT_ROLE_ASSISTANT:
        for arguments in draw(st.lists(CALLED, max_size=2)):
            message.tool_calls.add(id=draw(TEXTS), name=draw(TEXTS), arguments=arguments)
    return message


@st.composite
def chats(draw: st.DrawFn) -> pb.ChatRequest:
    """Conversations that are served, by a template that shows no tools: none are on offer."""
    request = pb.ChatRequest(
        messages=draw(st.lists(messages(), min_size=1, max_size=3)),
        sampling_params=make_chat().sampling_params,
    )
    if draw(st.booleans()):
        names = draw(st.lists(NAMES, max_size=3, unique=True))
        request.tools.extend(pb.Tool(name=name, parameters=draw(OBJECTS)) for name in names)
        request.tool_choice.mode = pb.TOOL_CHOICE_MODE_NONE
    if draw(st.booleans()):
        request.parallel_tool_calls = draw(st.booleans())
        request.parse_special_tokens = draw(st.booleans())
    if draw(st.booleans()):
        effort = draw(TEXTS)
        request.thinking.MergeFrom(pb.Thinking(effort=effort, budget=draw(st.integers(0, INT32))))
    opens = draw(st.sampled_from([None, "add_generation_prompt", "continue_final_message"]))
    if opens is not None:
        setattr(request, opens, True)
    variables = st.sampled_from(["self", "loop", "range", "enable_thinking", "documents", "größe"])
    for name, value in draw(st.dictionaries(variables, JSON_VALUES, max_size=2)).items():
        request.chat_template_kwargs[name].CopyFrom(json_value(value))
    return request
