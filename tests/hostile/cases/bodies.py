"""What a body or a message holds: many items, wrong ones, products, and JSON that is no schema."""

import json
from typing import Any

from google.protobuf import struct_pb2

from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.hostile.case import Answer, Attack, Case, Target
from tests.integration.fuzzing.bad_values import make_chat

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = b'{"messages":[{"role":"user","content":"Hello"}],'
REFUSED = frozenset({"INVALID_ARGUMENT"})
BAD = frozenset({"400"})
BOTH = REFUSED | BAD
MANY = 1 << 30


def post(path: str, body: bytes | dict[str, Any]) -> Attack:
    return lambda target: target.post(path, body)


def biased(num_prompts: int, num_biases: int) -> dict[str, Any]:
    biases = {str(token): 1 for token in range(num_biases)}
    return {"prompt": ["a"] * num_prompts, "max_tokens": 1, "logit_bias": biases}


def schemas() -> list[dict[str, Any]]:
    return [{"type": "object", "$defs": value} for value in (None, ["a"], "a", 3)]


async def tools_over_grpc(target: Target) -> Answer:
    return await target.grpc("Chat", make_chat().SerializeToString() + b"\x62\x00" * 2_000_000)


async def messages_over_both(target: Target) -> list[Answer]:
    return [
        await target.grpc("Chat", make_chat().SerializeToString() + b"\x1a\x00" * 400_000),
        await target.post(CHAT, b'{"messages":[' + b'{"role":"user"},' * 400_000 + b"{}]}"),
    ]


async def variables_over_both(target: Target) -> list[Answer]:
    request = make_chat()
    null = struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
    variable = struct_pb2.ListValue(values=[null] * 300_000)
    request.chat_template_kwargs["a"].list_value.CopyFrom(variable)
    body = HELLO + b'"chat_template_kwargs":{"a":[' + b"0," * 4_000_000 + b"0]}}"
    return [
        await target.grpc("Chat", request.SerializeToString()),
        await target.post(CHAT, body),
    ]


async def definitions_over_both(target: Target) -> list[Answer]:
    answers = []
    for schema in schemas():
        request = make_chat()
        request.tools.add(name="t", parameters=json.dumps(schema))
        request.tool_choice.mode = pb.TOOL_CHOICE_MODE_REQUIRED
        answers.append(await target.grpc("Chat", request.SerializeToString()))
        function = {"name": "t", "parameters": schema}
        body = {
            "messages": [{"role": "user", "content": "Hello"}],
            "tools": [{"type": "function", "function": function}],
            "tool_choice": "required",
        }
        answers.append(await target.post(CHAT, body))
    return answers


async def nested_tools(target: Target) -> list[Answer]:
    answers = []
    for levels in range(960, 980):
        request = make_chat()
        request.tools.add(name="t", parameters='{"a":' * levels + "{}" + "}" * levels)
        answers.append(await target.grpc("Chat", request.SerializeToString()))
    return answers


CASES = (
    Case(
        name="many-prompts-with-many-biases",
        attack=post(COMPLETIONS, biased(1024, 20_000)),
        codes=BAD,
        says="logit_bias",
    ),
    Case(
        name="64-prompts-with-a-million-allowed-tokens",
        attack=post(
            COMPLETIONS,
            {"prompt": ["a"] * 64, "max_tokens": 1, "allowed_token_ids": list(range(1_000_000))},
        ),
        codes=BAD,
        says="allowed_token_ids",
    ),
    Case(
        name="prompts-times-sequences-times-logprobs",
        attack=post(COMPLETIONS, {"prompt": ["a"] * 1024, "n": 64, "logprobs": 20}),
        codes=BAD,
        says="prompt",
        unbounded={"signalbox_router.apis.openai.requests.request_totals.MAX_REPORTED": MANY},
    ),
    Case(
        name="two-million-wrong-ids",
        attack=post(COMPLETIONS, b'{"prompt":[' + b"1.5," * 2_000_000 + b"1.5]}"),
        codes=BAD,
        says="prompt[0]",
    ),
    Case(
        name="two-million-wrong-parts",
        attack=post(
            CHAT, b'{"messages":[{"role":"user","content":[' + b"1.5," * 2_000_000 + b"1.5]}]}"
        ),
        codes=BAD,
        says="messages",
    ),
    Case(
        name="two-million-empty-tools",
        attack=tools_over_grpc,
        codes=REFUSED,
        says="tools",
        unbounded={
            "signalbox_rpc.limits.large_messages.MAX_FIELDS": MANY,
            "signalbox_router.prompt.chat.conversation.MAX_TOOLS": MANY,
        },
    ),
    Case(
        name="400000-messages",
        attack=messages_over_both,
        codes=BOTH,
        says="messages",
    ),
    Case(
        name="millions-of-template-values",
        attack=variables_over_both,
        codes=BOTH,
        says="chat_template_kwargs",
        unbounded={
            "signalbox_router.apis.openai.bodies.body_parser.MAX_VALUES_OF": {},
            "signalbox_router.apis.openai.bodies.body_parser.MAX_VALUES": MANY,
            "signalbox_router.apis.openai.bodies.body_parser.MAX_UNCUT_VALUES": MANY,
            "signalbox_router.apis.inference.chat_codec.MAX_TEMPLATE_VALUES": MANY,
        },
    ),
    Case(
        name="a-key-of-megabytes-twice",
        attack=post(COMPLETIONS, b'{"%b":1,"%b":2}' % (b"k" * (3 << 20), b"k" * (3 << 20))),
        codes=BAD,
        says="the same key twice",
        unbounded={
            "signalbox_router.apis.openai.bodies.json_values.MAX_PARAM_CHARS": MANY,
            "signalbox_router.apis.openai.requests.errors.MAX_PARAM_CHARS": MANY,
        },
    ),
    Case(
        name="definitions-that-are-no-object",
        attack=definitions_over_both,
        codes=BOTH,
        says="tools[0]",
    ),
    Case(
        name="tools-nested-a-thousand-levels",
        attack=nested_tools,
        codes=REFUSED,
        says="tools[0].parameters",
        unbounded={"signalbox_router.limits.json_text.MAX_DEPTH": MANY},
    ),
)
