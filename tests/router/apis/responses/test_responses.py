"""Answers of /v1/responses, whole and streamed, as OpenAI's package reads them."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.apis.openai.custom_input import CustomInput
from tests.router.apis.inference.test_chat import writing
from tests.router.apis.openai.clients import MODEL, make_http
from tests.router.apis.responses.events import CALL, ask, built, events_of, function
from tests.router.fakes import bytewise_ids, finished, make_files, make_tokenizer, step

LENGTH = scheduler_pb2.FINISH_REASON_LENGTH
THOUGHT = "<think>\nhm \U0001f600\n</think>\n\n"
ADD = CALL % ("add", '{"a": 1}')
NAMESPACE = {"type": "namespace", "name": "crm", "description": "Customers", "tools": [function()]}
PATCH = {"type": "custom", "name": "patch", "description": "Patches"}
PATCHED = '{"input": "a\\n\\"b\\" \\ud83d\\ude00"}'
ENCRYPTED = "reasoning.encrypted_content"


def message(text: str, status: str = "completed") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "status": status, "content": [part]}


def called(name: str = "add", arguments: str = '{"a": 1}', **fields: Any) -> dict[str, Any]:
    call = {"type": "function_call", "name": name, "arguments": arguments, "status": "completed"}
    return call | fields


def thought(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "status": "completed", "summary": []} | fields


HM = {"type": "reasoning_text", "text": "hm \U0001f600"}
CASES: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "text": ("Hello.", {}, [message("Hello.")]),
    "nothing": ("", {}, []),
    "reasoning": (THOUGHT + "Hello.", {}, [thought(content=[HM]), message("Hello.")]),
    "summary": (
        THOUGHT + "Hello.",
        {"reasoning": {"summary": "auto"}},
        [thought(summary=[HM | {"type": "summary_text"}]), message("Hello.")],
    ),
    "calls": (
        f"{THOUGHT}Let me see.\n{ADD}\n{CALL % ('sub', '{}')}",
        {"tools": [function(), function("sub")]},
        [thought(content=[HM]), message("Let me see.\n"), called(), called("sub", "{}")],
    ),
    "namespace": (
        CALL % ("crm__add", '{"a": 1}'),
        {"tools": [NAMESPACE]},
        [called(namespace="crm")],
    ),
    "custom": (
        CALL % ("patch", PATCHED),
        {"tools": [PATCH]},
        [{"type": "custom_tool_call", "name": "patch", "input": 'a\n"b" \U0001f600'}],
    ),
    "other arguments of a custom tool": (
        CALL % ("patch", '{"text": 1}'),
        {"tools": [PATCH]},
        [{"type": "custom_tool_call", "name": "patch", "input": '{"text": 1}'}],
    ),
    "a forced call": (
        ADD,
        {"tools": [function()], "tool_choice": {"type": "function", "name": "add"}},
        [called()],
    ),
    "forced calls": (
        CALL % ("patch", PATCHED),
        {"tools": [function(), PATCH], "tool_choice": "required"},
        [{"type": "custom_tool_call", "name": "patch", "input": 'a\n"b" \U0001f600'}],
    ),
}


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    left = ("id", "call_id", "encrypted_content")
    return [{key: one for key, one in item.items() if key not in left} for item in items]


@pytest.mark.parametrize("name", CASES)
async def test_a_stream_builds_the_items_of_a_whole_answer(name: str) -> None:
    text, fields, items = CASES[name]
    async with make_http(writing(text), reasoning_parser="qwen3") as http:
        whole = await ask(http, **fields)
        events = await events_of(http, **fields)
        assert without_ids([one.to_dict() for one in whole.output]) == items
        assert without_ids(built(events)) == items
        assert whole.status == "completed" and events[-1].type == "response.completed"
        assert len({item.id for item in whole.output}) == len(items)
        assert whole.store is True
        assert whole.usage == events[-1].response.usage
        has_reasoning = any(item.type == "reasoning" for item in whole.output)
        assert bool(whole.usage.output_tokens_details.reasoning_tokens) is has_reasoning
        assert whole.usage.input_tokens + whole.usage.output_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("num_spaces", [3, 9000])
def test_the_input_of_a_custom_tool_is_the_same_behind_any_white_space(num_spaces: int) -> None:
    arguments = f'{{{" " * num_spaces}"input": "a\\n\\u00e9"}}'
    for size in (1, 7, len(arguments)):
        read = CustomInput()
        pieces = [arguments[i : i + size] for i in range(0, len(arguments), size)]
        assert "".join([*map(read.push, pieces), read.flush()]) == "a\n\u00e9"


async def test_events_come_in_order() -> None:
    async with make_http(writing("ab")) as http:
        events = await events_of(http)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [events[i].response.status for i in (0, 1, -1)] == ["in_progress"] * 2 + ["completed"]


@pytest.mark.parametrize("text", ["Hell", THOUGHT[:9], CALL % ("add", '{"a": 1')])
async def test_an_answer_of_max_output_tokens_is_incomplete(text: str) -> None:
    script = writing(text.removesuffix("}</tool_call>"), reason=LENGTH)
    async with make_http(script, reasoning_parser="qwen3") as http:
        fields = {"max_output_tokens": 40, "tools": [function()]}
        whole, events = await ask(http, **fields), await events_of(http, **fields)
        for response in (whole, events[-1].response):
            assert response.status == "incomplete"
            assert response.incomplete_details.reason == "max_output_tokens"
            assert [item.status for item in response.output] == ["incomplete"]
        assert events[-1].type == "response.incomplete"
        built(events)
        assert http.stack.scheduler.added[0].max_tokens == 40


async def test_reasoning_that_comes_back_is_what_the_model_has_written() -> None:
    async with make_http(writing(THOUGHT + "Hello."), reasoning_parser="qwen3") as http:
        answer = await ask(http, include=[ENCRYPTED])
        items = built(await events_of(http, include=[ENCRYPTED]))
        assert items[0]["encrypted_content"] == answer.output[0].encrypted_content
    reasoning, hello = (item.to_dict() for item in answer.output)
    strange = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA=="}
    template = "{% for m in messages %}[{{ m.thinking }}|{{ m.content }}]{% endfor %}"
    async with make_http(files=make_files(chat_template=template)) as other:
        for item, thinking, ids in ((reasoning, HM["text"], []), (strange, "", ["rs_1"])):
            answer = await ask(other, [{"role": "user", "content": "Hi"}, item, hello])
            assert [one.id for one in answer.input_transformations or ()] == ids
            prompt = list(other.stack.scheduler.added[-1].prompt_token_ids)
            text = await make_tokenizer().decode(prompt, skip_special_tokens=False)
            assert text == f"[|Hi][{thinking}|Hello.]"


async def test_log_probabilities_are_those_of_the_texts_tokens() -> None:
    text = f"{THOUGHT}Hé.\n{ADD}"

    def script(add: scheduler_pb2.Request) -> Any:
        for token_id in bytewise_ids(text):
            logprobs = common_pb2.TokenLogprobs(
                row=0, logprob=-0.5, rank=1, top_token_ids=[token_id], top_logprobs=[-0.5]
            )
            yield step((add.handle, 0, [token_id]), logprobs=[logprobs])
        yield step((add.handle, 0, []), **finished(add.handle))

    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "tools": [function()]}
    async with make_http(script, reasoning_parser="qwen3") as http:
        whole, events = await ask(http, **fields), await events_of(http, **fields)
    for items in ([one.to_dict() for one in whole.output], built(events)):
        (part,) = items[1]["content"]
        tokens = bytes(byte for one in part["logprobs"] for byte in one["bytes"])
        assert tokens.decode() == part["text"] == "Hé.\n"
        assert all(len(one["top_logprobs"]) == 1 for one in part["logprobs"])
    sent = [one for event in events if event.type.endswith("text.delta")
            for one in getattr(event, "logprobs", ())]  # fmt: skip
    assert len(sent) == len(tokens)


class Sum(BaseModel):
    total: int


async def test_the_sdk_reads_answers_streams_and_parsed_texts() -> None:
    text = json.dumps({"total": 3})
    async with make_http(writing(text)) as http:
        responses: Any = http.sdk.responses
        answer = await responses.create(model=MODEL, input="1 + 2?")
        assert answer.output_text == text
        parsed = await responses.parse(model=MODEL, input="1 + 2?", text_format=Sum)
        assert parsed.output_parsed == Sum(total=3)
        asked = http.stack.scheduler.added[-1].sampling_params.structured_output
        assert "total" in json.loads(asked.json_schema)["properties"]
        async with responses.stream(model=MODEL, input="1 + 2?", text_format=Sum) as stream:
            kinds: list[str] = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert final.output_parsed == Sum(total=3)
        assert kinds[-1] == "response.completed"
        count = await responses.input_tokens.count(model=MODEL, input="1 + 2?")
        assert count.input_tokens == len(http.stack.scheduler.added[0].prompt_token_ids)
