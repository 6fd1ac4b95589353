"""Conversations that go on from kept responses, by OpenAI's own client."""

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from tests.router.apis.inference.test_chat import writing
from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.apis.responses.events import CALL, built, events_of, function
from tests.router.fakes import EOS, bytewise_ids, make_tokenizer, token
from tests.waiting import EVENT_S

ADD = CALL % ("add", '{"a":1}')
RESULT = {"type": "function_call_output", "output": "1"}
TENANT = "x-signalbox-tenant"
_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)


async def ask(http: Http, input: Any = "Hi", **fields: Any) -> Any:
    create: Any = http.sdk.responses.create
    answer = await create(model=MODEL, input=input, **fields)
    Response.model_validate(answer.model_dump())
    return answer


async def prompt_of(http: Http, index: int = -1) -> str:
    ids = list(http.stack.scheduler.added[index].prompt_token_ids)
    return await make_tokenizer().decode(ids, skip_special_tokens=False)


def begins(http: Http, answer: str, index: int = -1) -> bool:
    """Returns whether a prompt begins with that of the turn before and its answer, as drawn."""
    before, now = (list(http.stack.scheduler.added[one].prompt_token_ids)
                   for one in (index - 1, index))  # fmt: skip
    drawn = [*before, *bytewise_ids(answer), token(EOS)]
    return now[: len(drawn)] == drawn


async def test_a_turn_goes_on_from_a_response_with_its_very_tokens() -> None:
    answer = " The capital of  France\n"
    async with make_http(writing(answer)) as http:
        first = await ask(http, instructions="Be brief.", temperature=0)
        assert first.store and first.previous_response_id is None
        second = await ask(http, "And?", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert await prompt_of(http) == (
            "[user]Hi</s>[assistant]The capital of  France</s>[user]And?</s>[assistant]"
        )
        third = await ask(http, [{"role": "user", "content": "So?"}],
                          previous_response_id=second.id)  # fmt: skip
        assert begins(http, answer)
        await http.sdk.responses.delete(first.id)
        await http.sdk.responses.delete(second.id)
        await ask(http, "Well?", previous_response_id=third.id, instructions="Be long.")
        text = await prompt_of(http)
        assert text.startswith("[system]Be long.</s>[user]Hi</s>[assistant]")
        assert text.count("[user]") == 4 and "brief" not in text


async def test_calls_and_their_outputs_go_on_with_the_same_tokens() -> None:
    async with make_http(writing(ADD)) as http:
        tools = [function()]
        first = await ask(http, tools=tools)
        (call,) = first.output
        result = RESULT | {"call_id": call.call_id}
        second = await ask(http, [result], tools=tools, previous_response_id=first.id)
        third = await ask(http, "And?", tools=tools, previous_response_id=second.id, store=False)
        assert third.store is False and third.previous_response_id == second.id
        assert f"[tooladd{call.call_id}]1</s>" in await prompt_of(http, 1)
        assert (await prompt_of(http)).count("</s>") == 5
        counted = await http.sdk.responses.input_tokens.count(
            model=MODEL, input="And?", tools=tools, previous_response_id=second.id
        )
        assert counted.input_tokens == len(http.stack.scheduler.added[-1].prompt_token_ids)


async def test_a_response_and_its_items_are_read_and_deleted() -> None:
    async with make_http(writing("ok")) as http:
        first = await ask(http, metadata={"a": "b"})
        messages = [{"role": "user", "content": text} for text in ("x", "y")]
        second = await ask(http, messages, previous_response_id=first.id)
        found = await http.sdk.responses.retrieve(first.id)
        assert found.model_dump() == first.model_dump()
        page = await http.sdk.responses.input_items.list(second.id, order="asc", limit=3)
        items = [_ITEM.validate_python(one.model_dump()) for one in page.data]
        assert [item.role for item in items] == ["user", "assistant", "user"]
        assert items[1].content[0].text == "ok" and items[0].content[0].type == "input_text"
        assert page.has_more
        every = [item.id async for item in http.sdk.responses.input_items.list(second.id, limit=1)]
        assert len(set(every)) == 4 and every[-3:] == [page.data[i].id for i in (2, 1, 0)]
        await http.sdk.responses.delete(first.id)
        for ask_again in (
            http.sdk.responses.retrieve(first.id),
            http.sdk.responses.delete(first.id),
            http.sdk.responses.input_items.list(first.id),
            ask(http, previous_response_id=first.id),
        ):
            with pytest.raises(openai.NotFoundError, match="this router's memory"):
                await ask_again
        assert (await http.sdk.responses.retrieve(second.id)).id == second.id


async def test_a_kept_stream_is_read_again_from_any_event() -> None:
    text = "The capital of France is Paris." * 3
    async with make_http(
        writing(f"<think>hm</think>{text}{ADD}"), reasoning_parser="qwen3"
    ) as http:
        events = await events_of(http, tools=[function()])
        assert events[0].response.store and events[-1].response.store
        found = events[-1].response
        stream = await http.sdk.responses.retrieve(found.id, stream=True)
        again = [event async for event in stream]
        assert [event.sequence_number for event in again] == [*range(len(again))]
        assert built(again) == built(events)
        rest = await http.sdk.responses.retrieve(found.id, stream=True, starting_after=4)
        assert [one.to_dict() async for one in rest] == [one.to_dict() for one in again[5:]]


async def test_ids_are_random_whatever_a_request_is_called() -> None:
    async with make_http(writing("ok")) as http:
        labelled = [await ask(http, extra_headers={"x-request-id": "mine"}) for _ in range(2)]
        named = await ask(http, extra_body={"request_id": "mine"})
        plain = await ask(http)
        ids = {one.id for one in (*labelled, named, plain)}
        assert len(ids) == 4
        assert all(len(bytes.fromhex(one.removeprefix("resp_"))) == 16 for one in ids)
        sent = [one.request_id for one in http.stack.scheduler.added]
        assert sent[0].startswith("resp_mine-") and sent[2] == "resp_mine"
        assert sent[3] == plain.id


async def test_a_tenant_finds_its_own_responses_alone() -> None:
    async with make_http(writing("ok"), trust_tenant_header=True) as http:
        mine, other = ({TENANT: name} for name in "ab")
        answer = await ask(http, extra_headers=mine)
        responses: Any = http.sdk.responses
        for ask_for in (
            lambda headers: responses.retrieve(answer.id, extra_headers=headers),
            lambda headers: responses.input_items.list(answer.id, extra_headers=headers),
            lambda headers: ask(http, previous_response_id=answer.id, extra_headers=headers),
            lambda headers: responses.delete(answer.id, extra_headers=headers),
        ):
            for headers in (other, {}):
                with pytest.raises(openai.NotFoundError):
                    await ask_for(headers)
            await ask_for(mine)


async def test_without_a_store_nothing_is_promised() -> None:
    async with make_http(writing("ok"), response_store="none") as http:
        answer = await ask(http)
        assert answer.store is False
        for fields in ({"store": True}, {"background": True}, {"previous_response_id": answer.id}):
            with pytest.raises(openai.BadRequestError) as caught:
                await ask(http, **fields)
            assert caught.value.param == next(iter(fields))
        with pytest.raises(openai.NotFoundError, match="--response-store none"):
            await http.sdk.responses.retrieve(answer.id)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=maybe", "stream"),
        ("starting_after=1", "starting_after"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=" + 5000 * "0", "starting_after"),
        ("include_obfuscation=true", "include_obfuscation"),
        ("include[]=all", "include[0]"),
        ("include=message.output_text.logprobs", "include"),
        ("verbose=1", "verbose"),
    ],
)
async def test_a_query_is_refused_by_the_name_of_its_part(query: str, param: str) -> None:
    async with make_http(writing("ok")) as http:
        answer = await ask(http)
        refused = await http.raw.get(f"/v1/responses/{answer.id}?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_response_that_cannot_be_kept_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with make_http(writing("ok"), response_store_size=1) as http:
        input = str(list(range(3)))
        store: Any = http.stack.router.http._work._store  # type: ignore[union-attr]
        store.bounds = type(store.bounds)(max_bytes=10, max_age_s=60)
        answer = await ask(http, input)
        assert answer.store is False and "--response-store-size" in caplog.text
        events = await events_of(http, input)
        assert [events[i].response.store for i in (0, -1)] == [True, False]
        assert events[-1].type == "response.completed"


async def test_a_restart_keeps_what_is_in_a_file(tmp_path: Path) -> None:
    answer = " The  capital\n"
    options: dict[str, Any] = {"response_store": f"sqlite:{tmp_path}/kept"}
    async with make_http(writing(answer), **options) as http:
        first = await ask(http)
        before = list(http.stack.scheduler.added[-1].prompt_token_ids)
    async with make_http(writing(answer), **options) as http:
        assert (await http.sdk.responses.retrieve(first.id)).model_dump() == first.model_dump()
        await ask(http, "And?", previous_response_id=first.id)
        drawn = [*before, *bytewise_ids(answer), token(EOS)]
        assert list(http.stack.scheduler.added[-1].prompt_token_ids)[: len(drawn)] == drawn
        other = openai.AsyncOpenAI(
            base_url=http.sdk.base_url, api_key="none", max_retries=0, timeout=EVENT_S
        )
        async with other:
            with pytest.raises(openai.NotFoundError, match="kept"):
                await other.responses.retrieve("resp_of_another_host")
