"""Completions and chats as OpenAI's SDK reads them; the scheduler is a fake."""

import asyncio
import json
import re
import struct
from collections.abc import Iterable
from typing import Any

import openai
import pytest

from signalbox_contract.columns import unpack_int32
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2
from tests.router.apis.inference.test_chat import CALL, writing
from tests.router.apis.inference.test_parameters import prompt_run
from tests.router.apis.openai.clients import HI, Http, make_http
from tests.router.fakes import (
    BOS,
    EOS,
    IM_END,
    bytewise_ids,
    finished,
    ids_of,
    make_files,
    make_tokenizer,
    step,
    token,
)
from tests.router.stack import Outputs, drafting, saying

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def logprobs_of(token_ids: Iterable[int]) -> list[common_pb2.TokenLogprobs]:
    """Each token is the second of two."""
    return [
        common_pb2.TokenLogprobs(
            row=row, logprob=-2.0, rank=2, top_token_ids=[token("a")], top_logprobs=[-1.0]
        )
        for row, _ in enumerate(token_ids)
    ]


def scored(text: str) -> Any:
    """Returns a script that answers with a token for each byte and its log probability."""

    def script(add: scheduler_pb2.Request) -> Outputs:
        ids = bytewise_ids(text)
        yield step((add.handle, 0, ids), logprobs=logprobs_of(ids), **finished(add.handle))

    return script


def branches(*texts: str) -> Any:
    """Returns a script with a sequence for each text; they take turns."""

    def script(add: scheduler_pb2.Request) -> Outputs:
        for index, text in enumerate(texts):
            yield step((add.handle, index, ids_of(text)))
        yield step(**finished(add.handle, num_sequences=len(texts)))

    return script


async def test_a_completion_has_text_reason_and_usage() -> None:
    async with make_http(saying(" Paris", " is", " nice")) as http:
        answer = await http.complete(temperature=0)
        (choice,) = answer.choices
        assert (choice.text, choice.finish_reason, choice.index) == (" Paris is nice", "length", 0)
        num_tokens = len(ids_of(" Paris") + ids_of(" is") + ids_of(" nice"))
        assert answer.usage.completion_tokens == num_tokens
        assert answer.usage.total_tokens == 7 + num_tokens
        assert answer.usage.prompt_tokens_details.cached_tokens == 3
        assert (answer.object, answer.model) == ("text_completion", "tiny")
        assert http.stack.scheduler.added[0].max_tokens == 16


async def test_a_streamed_completion_says_the_same() -> None:
    async with make_http(saying(" Paris", " is", " nice")) as http:
        chunks = await http.completion_chunks(stream_options={"include_usage": True})
        assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == " Paris is nice"
        reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
        assert reasons[-1] == "length"
        assert not any(reasons[:-1])
        assert chunks[-1].choices == []
        assert chunks[-1].usage.prompt_tokens == 7
        assert not any(chunk.usage for chunk in chunks[:-1])
        assert len({chunk.id for chunk in chunks}) == 1


async def test_usage_comes_with_every_event_if_asked_for() -> None:
    async with make_http(saying(" Paris", " is")) as http:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await http.completion_chunks(stream_options=options, echo=True)
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == len(ids_of(" Paris") + ids_of(" is"))
        assert all(chunk.usage.prompt_tokens for chunk in chunks)


async def test_a_stream_ends_with_done(http: Http) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": HI}),
    ):
        answer = await http.raw.post(path, json={**body, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"  # nginx passes each event on
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert answer.headers["x-request-id"] == json.loads(events[0][6:])["id"]
        assert all(json.loads(event.removeprefix("data: ")) for event in events[:-2])


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_several_prompts_are_choices_in_order(is_streamed: bool) -> None:
    def script(add: scheduler_pb2.Request) -> Outputs:
        ids = list(add.prompt_token_ids)[-1:]  # says the prompt's last token, twice over
        yield step((add.handle, 0, ids), (add.handle, 1, ids * 2))
        yield step(**finished(add.handle, num_sequences=2))

    async with make_http(script) as http:
        prompts: list[Any] = ["a", "b", "c"]
        texts: dict[int, str] = {}
        if is_streamed:
            for chunk in await http.completion_chunks(prompts, n=2):
                for choice in chunk.choices:
                    texts[choice.index] = texts.get(choice.index, "") + choice.text
        else:
            answer = await http.complete(prompts, n=2)
            texts = {choice.index: choice.text for choice in answer.choices}
            assert answer.usage.prompt_tokens == 3 * 7
        assert texts == {0: "a", 1: "aa", 2: "b", 3: "bb", 4: "c", 5: "cc"}
        ids = [[token("a")], [token("b")]]
        assert [c.text for c in (await http.complete(ids, n=2)).choices] == ["a", "aa", "b", "bb"]
        assert [c.text for c in (await http.complete(ids[0], n=2)).choices] == ["a", "aa"]


async def test_one_prompt_that_fails_fails_them_all_and_leaves_nothing(http: Http) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt: "):
        await http.complete([[token("a")], [10**6]])
    await http.stack.check_nothing_is_left()


async def test_a_completions_logprobs_are_those_of_its_tokens() -> None:
    async with make_http(scored("é!")) as http:
        answer = await http.complete(logprobs=1)
        logprobs = answer.choices[0].logprobs
        assert logprobs.tokens == ["bytes:\\xc3", "bytes:\\xa9", "!"]
        assert logprobs.token_logprobs == [-2.0] * 3
        assert logprobs.text_offset == [0, 0, 1]
        assert list(logprobs.top_logprobs[2].items()) == [("!", -2.0), ("a", -1.0)]
        chunks = await http.completion_chunks(logprobs=1)
        assert chunks[0].choices[0].logprobs == logprobs
        assert (await http.complete()).choices[0].logprobs is None


async def test_an_echoed_prompt_has_logprobs_too() -> None:
    def script(add: scheduler_pb2.Request) -> Outputs:
        prompt = add.prompt_token_ids
        rows = logprobs_of(prompt[1:])
        entries = [scheduler_pb2.PromptLogprobs(handle=add.handle, first_position=1, logprobs=rows)]
        ids = bytewise_ids("!")
        outputs = step((add.handle, 0, ids), logprobs=logprobs_of(ids), **finished(add.handle))
        outputs.prompt_logprobs.extend(entries)
        yield outputs

    async with make_http(script) as http:
        # The SDK's types have no place for the first token's null, which OpenAI sends too.
        create = http.sdk.completions.create
        answer = await create(model="tiny", prompt="Hi", echo=True, logprobs=1)
        (choice,) = answer.choices
        assert choice.text == "Hi!"
        assert choice.logprobs.tokens == ["<s>", "H", "i", "!"]
        assert choice.logprobs.token_logprobs == [None, -2.0, -2.0, -2.0]
        # What evaluation harnesses ask for: the prompt alone.
        answer = await create(model="tiny", prompt="Hi", echo=True, logprobs=1, max_tokens=0)
        (choice,) = answer.choices
        assert (choice.text, choice.finish_reason) == ("Hi", "length")
        assert choice.logprobs.tokens == ["<s>", "H", "i"]
        assert answer.usage.completion_tokens == 0
        answer = await http.complete("Hi", extra_body={"prompt_logprobs": 1})
        first, second, _ = answer.choices[0].prompt_logprobs
        assert first is None
        own = {"logprob": -2.0, "rank": 2, "decoded_token": "H"}
        likeliest = {"logprob": -1.0, "rank": 1, "decoded_token": "a"}
        assert list(second.items()) == [(str(token("H")), own), (str(token("a")), likeliest)]


@pytest.mark.parametrize("skips", [False, True])
async def test_an_echo_is_verbatim_and_offsets_index_it(skips: bool) -> None:
    prompt = "<|im_start|>é  東京<|im_end|>x"

    def script(add: scheduler_pb2.Request) -> Outputs:
        ids = [*bytewise_ids("東!"), token(IM_END), *bytewise_ids("?")]
        outputs = step((add.handle, 0, ids), logprobs=logprobs_of(ids), **finished(add.handle))
        outputs.prompt_logprobs.extend(
            prompt_run(add.handle, first=1, count=len(add.prompt_token_ids) - 1).prompt_logprobs
        )
        yield outputs

    async with make_http(script) as http:
        ids = http.stack.router.generator.models.of().tokenizer.encode_blocking(
            prompt, add_special_tokens=False
        )
        extra = {"skip_special_tokens": skips, "return_token_ids": True}
        fields: dict[str, Any] = {"model": "tiny", "echo": True, "logprobs": 0, "extra_body": extra}
        generated = "東!?" if skips else "東!<|im_end|>?"
        for asked in (prompt, ids):
            answer = await http.sdk.completions.create(prompt=asked, **fields)
            (choice,) = answer.choices
            assert choice.text == prompt + generated
            num_prompt = len(ids) + isinstance(asked, str)  # a text gets its first special token
            assert choice.prompt_token_ids[-len(ids) :] == ids
            assert choice.token_ids == [*bytewise_ids("東!"), token(IM_END), *bytewise_ids("?")]
            offsets = choice.logprobs.text_offset
            assert offsets == sorted(offsets) and len(offsets) == num_prompt + 6
            for offset, text in zip(offsets, choice.logprobs.tokens, strict=True):
                if text in (BOS, IM_END if skips else BOS) or text.startswith("bytes:"):
                    continue
                assert choice.text.startswith(text, offset), (text, offset)
            stream = await http.sdk.completions.create(prompt=asked, stream=True, **fields)
            chunks = [chunk.choices[0] async for chunk in stream]
            assert "".join(chunk.text for chunk in chunks) == choice.text
            assert [i for chunk in chunks for i in chunk.logprobs.text_offset] == offsets
            assert [i for chunk in chunks for i in chunk.token_ids] == choice.token_ids
        cut = {**extra, "truncate_prompt_tokens": 2}
        answer = await http.sdk.completions.create(prompt=prompt, **{**fields, "extra_body": cut})
        assert answer.choices[0].text == "<|im_end|>x" + generated
        assert answer.choices[0].logprobs.text_offset[:2] == [0, len("<|im_end|>")]


async def test_no_offset_lies_behind_a_text_that_a_stop_string_cut() -> None:
    async with make_http(scored("one two three")) as http:
        (choice,) = (await http.complete(stop="o th", logprobs=0)).choices
        assert choice.text == "one tw"
        assert max(choice.logprobs.text_offset) == len(choice.text)


@pytest.mark.parametrize("extra", [{}, {"include_stop_str_in_output": True}])
async def test_offsets_of_a_stream_never_decrease(extra: dict[str, Any]) -> None:
    def script(add: scheduler_pb2.Request) -> Outputs:
        *ids, last = bytewise_ids("one two threé")
        for one in ids:  # a token an event; the text of those that may be a stop is held back
            yield step((add.handle, 0, [one]), logprobs=logprobs_of([one]))
        end = finished(add.handle)
        yield step((add.handle, 0, [last]), logprobs=logprobs_of([last]), **end)

    async with make_http(script) as http:
        for stop in ("o th", " three", "two thr", "é", "x"):
            fields: dict[str, Any] = {"stop": stop, "logprobs": 0, "extra_body": extra}
            chunks = await http.completion_chunks(**fields)
            text = "".join(chunk.choices[0].text for chunk in chunks)
            logprobs = [one.choices[0].logprobs for one in chunks if one.choices[0].logprobs]
            offsets = [offset for one in logprobs for offset in one.text_offset]
            tokens = [token for one in logprobs for token in one.tokens]
            assert offsets == sorted(offsets) and len(offsets) == len(tokens), (stop, offsets)
            for offset, token_text in zip(offsets, tokens, strict=True):
                is_there = offset + len(token_text) <= len(text)
                assert not is_there or text.startswith(token_text, offset), (stop, offset)


async def test_a_chat_has_a_message() -> None:
    async with make_http(writing("Hé!")) as http:
        answer = await http.chat()
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content) == ("assistant", "Hé!")
        assert choice.finish_reason == "stop"
        assert choice.message.tool_calls is None
        prompt = http.stack.scheduler.added[0]
        assert prompt.max_tokens == 2048 - len(prompt.prompt_token_ids)


async def test_a_streamed_chat_opens_with_the_role_and_its_usage_only_grows() -> None:
    async with make_http(branches("one", "two")) as http:
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = await http.chat_chunks(n=2, stream_options=options)
        texts = ["", ""]
        roles: list[int] = []
        for chunk in chunks:
            (choice,) = chunk.choices
            if choice.delta.role:
                roles.append(choice.index)
            assert choice.index in roles
            texts[choice.index] += choice.delta.content or ""
        assert texts == ["one", "two"]
        assert sorted(roles) == [0, 1]
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts[0] == 0
        assert counts == sorted(counts)
        assert counts[-1] == last.usage.completion_tokens == len(ids_of("one") + ids_of("two"))
        assert all(chunk.usage.prompt_tokens for chunk in chunks)
        assert not any(chunk.usage.prompt_tokens_details for chunk in chunks)
        assert last.usage.prompt_tokens_details.cached_tokens == 3
        answer = await http.chat(n=2)
        assert [choice.message.content for choice in answer.choices] == ["one", "two"]


async def test_named_tokens_reach_the_scheduler_and_need_logprobs() -> None:
    async with make_http(scored("é")) as http:
        named: dict[str, Any] = {"logprob_token_ids": [token("a"), 3]}
        await http.chat(logprobs=True, top_logprobs=5, extra_body=named)
        await http.complete(logprobs=2, extra_body=named)
        await http.complete(logprobs=2, extra_body={"logprob_token_ids": []})
        sent = [one.sampling_params for one in http.stack.scheduler.added]
        columns = [unpack_int32(one.logprob_token_ids).tolist() for one in sent]
        assert columns == [[token("a"), 3]] * 2 + [[]]
        assert [one.num_logprobs for one in sent] == [0, 0, 2]
        echo = {"prompt": "a", "logprobs": 1, "echo": True, "max_tokens": 0}
        for path, body in (
            ("/v1/chat/completions", {"messages": HI, "logprobs": False, **named}),
            ("/v1/completions", {"prompt": "a", **named}),
            ("/v1/completions", echo | named),
            ("/v1/completions", {"prompt": "a", "logprobs": 1, "logprob_token_ids": [1 << 20]}),
            ("/v1/completions", {"prompt": "a", "logprobs": 1, "logprob_token_ids": [3] * 129}),
            ("/v1/completions", {"prompt": "a", "logprobs": 1, "logprob_token_ids": [-1]}),
        ):  # fmt: skip
            answer = await http.raw.post(path, json=body)
            assert answer.status_code == 400, body
            assert answer.json()["error"]["param"] == "logprob_token_ids"
        assert len(http.stack.scheduler.added) == 3


async def test_a_chats_logprobs_have_bytes() -> None:
    async with make_http(scored("é")) as http:
        answer = await http.chat(logprobs=True, top_logprobs=1)
        first, second = answer.choices[0].logprobs.content
        assert (first.token, first.bytes, first.logprob) == ("bytes:\\xc3", [0xC3], -2.0)
        assert [(top.token, top.logprob) for top in second.top_logprobs] == [("a", -1.0)]
        chunks = await http.chat_chunks(logprobs=True, top_logprobs=1)
        streamed = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
        assert [one for logprobs in streamed for one in logprobs.content] == [first, second]
        named = {"logprob_token_ids": [token("a")]}
        for fields in ({"extra_body": named}, {"extra_body": named, "top_logprobs": 5}):
            answer = await http.chat(logprobs=True, **fields)
            for one in answer.choices[0].logprobs.content:
                tops = [(top.token, top.bytes, top.logprob) for top in one.top_logprobs]
                assert tops == [(one.token, one.bytes, one.logprob), ("a", [97], -1.0)]


@pytest.mark.parametrize("asks", [False, True])
async def test_whole_answers_have_the_keys_of_vllms_and_events_do_not_grow(asks: bool) -> None:
    of_answers = {
        "service_tier",
        "system_fingerprint",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
        "usage",
        "choices",
        "id",
        "object",
        "created",
        "model",
    }
    of_choices = {
        "index",
        "finish_reason",
        "stop_reason",
        "logprobs",
        "token_ids",
        "routed_experts",
        "weight_versions",
    }
    of_prompts = {"prompt_token_ids", "prompt_logprobs"}
    of_messages = {"role", "content", "refusal", "annotations", "audio", "function_call",
                   "reasoning"}  # fmt: skip
    async with make_http(writing("ok")) as http:
        body = {"return_token_ids": asks, "return_token_strs": asks}

        async def ask(path: str, **fields: Any) -> Any:
            return (await http.raw.post(path, json=body | fields)).json()

        answer = await ask("/v1/completions", prompt="Hi")
        (choice,) = answer["choices"]
        assert answer.keys() == of_answers
        assert choice.keys() == {"text"} | of_choices | of_prompts
        assert choice["prompt_logprobs"] is None
        assert (choice["token_ids"] is None) is (choice["prompt_token_ids"] is None) is not asks
        answer = await ask("/v1/chat/completions", messages=HI)
        (choice,) = answer["choices"]
        assert answer.keys() == of_answers | of_prompts | {"prompt_text"}
        assert choice.keys() == {"message"} | of_choices and answer["prompt_logprobs"] is None
        assert (choice["token_ids"] is None) is (answer["prompt_token_ids"] is None) is not asks
        assert choice["message"].keys() == of_messages and choice["message"]["reasoning"] is None
        assert ((await ask("/tokenize", prompt="Hi"))["token_strs"] is None) is not asks
        streams = [
            await http.raw.post("/v1/completions", json={"prompt": "Hi", "stream": True}),
            await http.raw.post("/v1/chat/completions", json={"messages": HI, "stream": True}),
        ]
        for name in ("prompt_logprobs", "token_ids", "annotations", "metrics"):
            assert not any(name in stream.text for stream in streams)


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    named = [
        {"type": one["type"], one["type"]: {"name": one[one["type"]]["name"]}} for one in tools
    ]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


async def test_tool_calls_are_read_by_the_sdk() -> None:
    async with make_http(writing(f"Well. {CALL}\n{CALL}")) as http:
        answer = await http.chat(tools=[TOOL])
        (choice,) = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("Well. ", "tool_calls")
        assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"] * 2
        assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris"}
        # A client sends them back as they came.
        call = choice.message.tool_calls[0]
        result = {"role": "tool", "tool_call_id": call.id, "content": "Rain"}
        await http.chat([*HI, choice.message.model_dump(), result], tools=[TOOL])
        answer = await http.chat(tools=[TOOL], parallel_tool_calls=False)
        assert len(answer.choices[0].message.tool_calls) == 1
        answer = await http.chat(tools=[TOOL], tool_choice="none")
        assert answer.choices[0].message.content == f"Well. {CALL}\n{CALL}"


async def test_streamed_tool_calls_are_joined_by_the_sdk() -> None:
    async with make_http(writing(CALL)) as http:
        messages: Any = HI
        tools: Any = [TOOL]
        stream = http.sdk.chat.completions.stream(model="tiny", messages=messages, tools=tools)
        async with stream as events:
            async for event in events:
                assert event.type != "content.delta" or not event.delta
            final = await events.get_final_completion()
        (call,) = final.choices[0].message.tool_calls or []
        assert call.function.arguments == '{"city": "Paris"}'
        assert final.choices[0].finish_reason == "tool_calls"


PATCH = {"type": "custom", "custom": {"name": "patch", "description": "P", "format": {
    "type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}}}  # fmt: skip
OF_PATCH = '<tool_call>{"name": "patch", "arguments": {"input": "a\\n\\ud83d\\ude00"}}</tool_call>'
BROKEN = '<tool_call>{"name": "patch", "arguments": {"text": 1}}</tool_call>'


async def test_custom_tools_have_a_text_as_their_input() -> None:
    async with make_http(writing(f"{OF_PATCH}{CALL}{BROKEN}")) as http:
        answer = await http.chat(tools=[TOOL, PATCH])
        calls = answer.choices[0].message.tool_calls
        assert [(call.type, call.custom.name) for call in calls[::2]] == [("custom", "patch")] * 2
        assert [call.custom.input for call in calls[::2]] == ["a\n\U0001f600", '{"text": 1}']
        assert calls[1].function.arguments == '{"city": "Paris"}'
        # A stream has the same parts; the SDK's type of a chunk knows functions alone.
        asked = {"messages": HI, "tools": [TOOL, PATCH], "stream": True}
        stream = await http.raw.post("/v1/chat/completions", json=asked)
        joined = dict[int, dict[str, Any]]()
        for line in stream.text.split("\n\n")[:-2]:
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            for part in choice["delta"].get("tool_calls", ()):
                call = joined.setdefault(part["index"], part)
                for kind, field in (("function", "arguments"), ("custom", "input")):
                    if kind in part and part is not call:
                        call[kind][field] += part[kind][field]
        sent = [call.model_dump(exclude={"id"}, exclude_none=True) for call in calls]
        assert [joined[i] | {"id": "", "index": 0} for i in range(3)] == [
            call | {"id": "", "index": 0} for call in sent
        ]
        results = [{"role": "tool", "tool_call_id": c.id, "content": "ok"} for c in calls]
        talk = [*HI, answer.choices[0].message.model_dump(), *results]
        await http.chat(talk, tools=[TOOL, PATCH])
        prompt = await make_tokenizer().decode(
            list(http.stack.scheduler.added[-1].prompt_token_ids), skip_special_tokens=False
        )
        assert '"pattern": "^(?:a+)$"' in prompt
        assert '{"name": "patch", "arguments": {"input": "a\\n\U0001f600"}}' in prompt


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ({"type": "custom", "custom": {"name": "patch"}}, [False, True]),
        (allowed("required", TOOL), [True, False]),
        (allowed("required", TOOL, PATCH), [True, True]),
        (allowed("auto", PATCH), [False, True]),
    ],
)
async def test_a_choice_may_name_custom_tools_and_several(choice: Any, called: list[bool]) -> None:
    async with make_http() as http:
        await http.chat(tools=[TOOL, PATCH], tool_choice=choice)
        rules = http.stack.scheduler.added[-1].sampling_params.structured_output.rules
    assert [f'"const": "{name}"' in rules for name in ("get_weather", "patch")] == called


async def test_fields_reach_the_scheduler(http: Http) -> None:
    await http.chat(
        temperature=0.5, top_p=0.5, seed=-1, presence_penalty=1, frequency_penalty=1,
        logit_bias={"7": -3}, max_completion_tokens=9, stop=["x", "y"],
        extra_body={
            "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5, "stop_token_ids": [8],
            "min_tokens": 2, "typical_p": 0.5, "allowed_token_ids": [token(EOS), 65],
            "priority": 3, "cache_salt": "salt", "speculation": False,
        },
    )  # fmt: skip
    (add,) = http.stack.scheduler.added
    params = add.sampling_params
    assert (params.temperature, params.top_p, params.seed) == (0.5, 0.5, 2**64 - 1)
    assert (params.presence_penalty, params.frequency_penalty) == (1, 1)
    assert unpack_int32(params.logit_bias_token_ids).tolist() == [7]
    assert struct.unpack("<f", params.logit_biases) == (-3,)
    assert (add.max_tokens, params.top_k, params.min_tokens) == (9, 5, 2)
    assert (params.min_p, params.typical_p) == (pytest.approx(0.1), 0.5)
    assert list(params.stop_token_ids) == [8, token(EOS)]
    assert params.repetition_penalty == 1.5
    assert unpack_int32(params.allowed_token_ids).tolist() == [token(EOS), 65]
    assert (add.priority, add.cache_salt) == (3, "salt")
    assert add.no_speculation
    await http.complete(extra_body={"top_k": -1, "truncate_prompt_tokens": 1})
    assert len(http.stack.scheduler.added[1].prompt_token_ids) == 1
    await http.complete(prompt=[65] * 3000, max_tokens=4, extra_body={"truncate_prompt_tokens": -1})
    assert len(http.stack.scheduler.added[2].prompt_token_ids) == 2048 - 4
    beam = {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5}
    await http.complete(extra_body=beam)
    search = http.stack.scheduler.added[3].beam_search
    assert (search.width, search.length_penalty) == (3, 0.5)


PREDICTIONS = ["one two", [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]]


@pytest.mark.parametrize("content", PREDICTIONS)
async def test_a_prediction_reaches_the_scheduler_and_is_counted_alone(content: Any) -> None:
    script = drafting(
        num_runs=4, num_drafts=10, num_accepted=6, num_predicted=5, num_predicted_accepted=3
    )
    async with make_http(script) as http:
        predicted = {"prediction": {"type": "content", "content": content}}
        answer = await http.chat(**predicted)
        assert list(http.stack.scheduler.added[0].prediction) == ids_of("one two")
        details = answer.usage.completion_tokens_details
        assert details.accepted_prediction_tokens == 3
        assert details.rejected_prediction_tokens == 2
        assert answer.metrics["speculative_decoding"] == {
            "mean_acceptance_length": 2.5,
            "draft_acceptance_rate": 0.6,
            "num_spec_steps": 4,
            "num_accepted_draft_tokens": 6,
            "num_draft_tokens": 10,
        }
        *_, last = await http.chat_chunks(stream_options={"include_usage": True})
        assert last.metrics == answer.metrics
        assert last.usage.completion_tokens_details.accepted_prediction_tokens is None


async def test_predicted_tokens_behind_a_stop_string_are_rejected_ones() -> None:
    script = drafting(
        num_runs=9, num_drafts=90, num_accepted=90, num_predicted=90, num_predicted_accepted=90
    )
    async with make_http(script) as http:
        answer = await http.chat(prediction={"type": "content", "content": "one two"})
        details = answer.usage.completion_tokens_details
        assert details.accepted_prediction_tokens == answer.usage.completion_tokens < 90
        assert details.rejected_prediction_tokens == 90 - answer.usage.completion_tokens


async def test_drafts_of_all_prompts_are_summed() -> None:
    async with make_http(drafting(num_runs=1, num_drafts=4, num_accepted=2)) as http:
        answer = await http.complete(prompt=["a", "b", "c"])
        counts = answer.metrics["speculative_decoding"]
        assert (counts["num_draft_tokens"], counts["mean_acceptance_length"]) == (12, 3)


async def test_stops_are_found_and_named() -> None:
    async with make_http(writing("one two three")) as http:
        (choice,) = (await http.complete(stop=" th")).choices
        assert (choice.text, choice.finish_reason) == ("one two", "stop")
        assert choice.stop_reason == " th"


async def test_a_plain_end_names_no_stop() -> None:
    def ending(reason: int) -> Any:
        def script(add: scheduler_pb2.Request) -> Outputs:
            ids = [token("a"), token(EOS)]
            yield step((add.handle, 0, ids), **finished(add.handle, reason, stop_token_id=ids[1]))

        return script

    for reason, stop in (
        (scheduler_pb2.FINISH_REASON_STOP, None),
        (scheduler_pb2.FINISH_REASON_STOP_TOKEN, token(EOS)),
    ):
        async with make_http(ending(reason)) as http:
            for answer in (await http.complete(), await http.chat()):
                (choice,) = answer.choices
                assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)


async def test_an_answer_names_the_backend_that_made_it() -> None:
    async with make_http(version="1.2.3") as http:
        chunks = [*await http.chat_chunks(), *await http.completion_chunks()]
        answers = [await http.chat(), await http.complete(), *chunks]
        (fingerprint,) = {answer.system_fingerprint for answer in answers}
        assert fingerprint.startswith("signalbox-1.2.3-")


async def test_a_streams_prompt_tokens_stand_beside_the_choices(http: Http) -> None:
    first, *others = await http.chat_chunks(extra_body={"return_token_ids": True})
    assert first.prompt_token_ids == list(http.stack.scheduler.added[0].prompt_token_ids)
    assert "prompt_token_ids" not in first.choices[0].model_extra
    assert not any("prompt_token_ids" in chunk.model_extra for chunk in others)


async def test_a_forced_call_replaces_the_response_format() -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    files = make_files(chat_template="{{ tools }}{# <tool_call> #}")
    async with make_http(writing(call), files=files) as http:
        other = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}
        named = {"type": "function", "function": {"name": "get_weather"}}
        for form in (other, {"type": "json_object"}):
            answer = await http.chat(tools=[TOOL], tool_choice=named, response_format=form)
            (call,) = answer.choices[0].message.tool_calls
            assert call.function.arguments == '{"city": "Paris"}'
        for add in http.stack.scheduler.added:
            rules = add.sampling_params.structured_output.rules
            (schema,) = re.findall("%json (.*)", rules)
            (parameters,) = json.loads(schema)["$defs"].values()
            assert parameters["properties"].keys() == {"city"}
        with pytest.raises(openai.BadRequestError):
            extra = {"structured_outputs": {"regex": "a"}}
            await http.chat(tools=[TOOL], tool_choice=named, extra_body=extra)


async def test_token_ids_are_returned_if_asked_for() -> None:
    async with make_http(saying("ok")) as http:
        body = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        (choice,) = (await http.complete(extra_body=body)).choices
        assert choice.token_ids == ids_of("ok")
        assert choice.prompt_token_ids == [token("<s>"), *ids_of("Hi")]
        answer = await http.chat(extra_body=body)
        assert answer.choices[0].token_ids == ids_of("ok")
        chunks = await http.chat_chunks(extra_body=body)
        assert [i for c in chunks for i in c.choices[0].model_extra.get("token_ids", [])] == ids_of(
            "ok"
        )


async def test_a_clients_template_and_an_open_message(http: Http) -> None:
    talk = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "Well"}]}]
    body = {"continue_final_message": True, "add_generation_prompt": False}
    answer = await http.raw.post("/tokenize", json={"messages": talk, **body})
    ids = answer.json()["tokens"]
    await http.chat(talk, extra_body=body)
    assert list(http.stack.scheduler.added[0].prompt_token_ids) == ids
    text = (await http.raw.post("/detokenize", json={"tokens": ids})).json()["prompt"]
    assert text == "[user]Hi</s>[assistant]Well"
    template = "{{ messages[0].content }}{{ x }}"
    body2 = {"chat_template": template, "chat_template_kwargs": {"x": "!"}}
    answer = await http.raw.post("/tokenize", json={"messages": HI, **body2})
    assert answer.json()["tokens"] == ids_of("Hi!")


async def test_an_echo_of_a_chat_begins_with_the_assistants_last_message(http: Http) -> None:
    parts = [{"type": "text", "text": "Well"}, {"type": "text", "text": "no"}]
    for content, begin in (("Well, ", "Well, "), (parts, "Well\nno")):
        talk = [*HI, {"role": "assistant", "content": content}]
        answer = await http.chat(talk, n=2, extra_body={"echo": True})
        assert [one.message.content for one in answer.choices] == [f"{begin}ok"] * 2
        assert answer.usage == (await http.chat(talk, n=2)).usage
        chunks = await http.chat_chunks(talk, extra_body={"echo": True})
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == f"{begin}ok"
    for messages, echo in ((talk, False), (HI, True)):
        answer = await http.chat(messages, extra_body={"echo": echo})
        assert answer.choices[0].message.content == "ok"


async def test_a_client_that_leaves_aborts() -> None:
    def begin(add: scheduler_pb2.Request) -> Outputs:
        yield step((add.handle, 0, ids_of("one")))

    async with make_http(begin) as http:
        create: Any = http.sdk.chat.completions.create
        stream = await create(model="tiny", messages=HI, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await _aborted(http, 1)

        whole = asyncio.create_task(http.complete(["a", "b"]))
        await http.stack.added(3)
        whole.cancel()
        await _aborted(http, 3)


async def _aborted(http: Http, number: int) -> None:
    await http.stack.scheduler.wait_until(lambda: len(http.stack.scheduler.aborted) == number)
    await http.stack.check_nothing_is_left()


async def test_prompt_logprobs_of_one_answer_are_bounded_over_all_its_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signalbox_router.apis.openai.logprobs.MAX_PROMPT_LOGPROBS", 2 * 3 * 4)

    def script(add: scheduler_pb2.Request) -> Outputs:
        outputs = prompt_run(add.handle, first=1, count=len(add.prompt_token_ids) - 1, num_top=2)
        yield outputs
        yield from branches(*["a"] * add.num_sequences)(add)

    async with make_http(script) as http:

        async def ask(**fields: Any) -> Any:
            return await http.raw.post("/v1/completions", json={"prompt_logprobs": 2, **fields})

        answer = await ask(prompt=[5] * 5, n=2)  # four positions of three entries, twice
        assert answer.status_code == 200
        choices = answer.json()["choices"]
        assert [len(choice["prompt_logprobs"]) for choice in choices] == [5, 5]
        for too_much in ({"prompt": [5] * 6, "n": 2}, {"prompt": [[5] * 5] * 3}):
            answer = await ask(**too_much)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "prompt_logprobs")
            assert "or gRPC" in error["message"]
        messages = [{"role": "user", "content": "Hi " * 20}]
        body = {"messages": messages, "prompt_logprobs": 2}
        answer = await http.raw.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
