"""How clients of each API name a session, and say for how long a prefix is needed."""

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import grpc
import pytest
from anthropic.types.cache_control_ephemeral_param import CacheControlEphemeralParam
from openai.types.responses import response_create_params

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.messages.request_codec import prefix_ttl_s
from signalbox_router.apis.messages.types import CacheControl, MessagesBody
from signalbox_router.apis.openai.requests.types import PromptCacheOptions
from tests.agents.recorded_requests import recorded
from tests.grpc_errors import code_of
from tests.router.apis.inference.test_chat import message
from tests.router.apis.messages.clients import Messages, make_messages
from tests.router.apis.openai.clients import HI, MODEL, Http
from tests.router.limits.test_api_keys import BEARER, entry, generate, write_keys
from tests.router.stack import make_generate, make_stack, saying

UUID = "54c1eb09-bc4c-4d2f-98eb-6d2ab2d5e2fe"
S = 10**9
SYSTEM = "You are helpful."


async def name_in_every_way(messages: Messages) -> int:
    """Sends a request for each way to name a session; returns how many there are."""
    http = messages.http
    await http.chat(prompt_cache_key=UUID)
    await http.chat(prompt_cache_key=UUID, extra_headers={"session-id": "another"})
    await http.chat(metadata={"session_id": UUID})
    await http.complete(extra_body={"prompt_cache_key": UUID})
    for header in ("session-id", "x-session-id", "X-Claude-Code-Session-Id"):
        await http.chat(extra_headers={header: UUID})
        await messages.post(headers={header: UUID})
    await messages.post(metadata={"user_id": f"user_0_account__session_{UUID}"})
    await messages.post(metadata={"user_id": json.dumps({"device_id": "d", "session_id": UUID})})
    await http.sdk.responses.create(model=MODEL, input="Hi", prompt_cache_key=UUID)
    await http.stack.generate(session=UUID)
    chat = pb.ChatRequest(messages=[message("Hi")], session=UUID)
    async for _ in http.stack.client.Chat(chat):
        pass
    return 15


async def test_every_way_to_name_a_session_gives_the_same_one() -> None:
    async with make_messages() as messages:
        number = await name_in_every_way(messages)
        sessions = [one.session for one in messages.http.stack.scheduler.added]
        assert len(sessions) == number
        assert len({*sessions}) == 1
        assert len(sessions[0]) == 16


async def test_a_name_is_told_to_no_one_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="signalbox_router")
    async with make_messages(log_requests="prompts") as messages:
        await name_in_every_way(messages)
        assert "request began" in caplog.text
        assert UUID not in caplog.text
        for one in messages.http.stack.scheduler.added:
            assert UUID.encode() not in one.SerializeToString()


async def test_labels_that_name_no_session_make_none() -> None:
    async with make_messages() as messages:
        http = messages.http
        await http.chat(metadata={"topic": "a"}, user="b", safety_identifier="c")
        await messages.post(metadata={"user_id": "b"})
        await http.raw.post("/v1/embeddings", json={"input": "a"}, headers={"session-id": "a"})
        assert [one.session for one in http.stack.scheduler.added] == [b"", b""]


async def test_two_keys_of_a_tenant_and_two_tenants_share_no_session(tmp_path: Path) -> None:
    red, green = ("authorization", "Bearer red"), ("authorization", "Bearer green")
    keys = write_keys(
        tmp_path / "keys",
        entry(tenant="team"),
        entry("red", name="red", tenant="team"),
        entry("green", name="green", tenant="other"),
    )
    async with make_stack(saying("!"), api_keys=keys) as stack:
        for _ in range(2):
            for shown in (BEARER, red, green):
                async for _answer in stack.client.Generate(
                    make_generate(session="a"), metadata=[shown]
                ):
                    pass
        await generate(stack, BEARER)
        *sessions, unnamed = [one.session for one in stack.scheduler.added]
    assert sessions[:3] == sessions[3:]
    assert len({*sessions}) == 3
    assert unnamed == b""


CHAT_TTLS: list[tuple[dict[str, Any], int]] = [
    ({"prompt_cache_options": {"ttl": "30m"}}, 1800),
    ({"prompt_cache_options": {"ttl": "12h", "mode": "explicit"}}, 43_200),
    ({"prompt_cache_options": {"mode": "implicit"}}, 0),
    ({"prompt_cache_retention": "24h"}, 86_400),
    ({"prompt_cache_retention": "in_memory"}, 0),
    ({"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}}, 1800),
    ({}, 0),
]


async def test_the_time_for_which_a_prefix_is_needed_reaches_the_scheduler(http: Http) -> None:
    for fields, _ in CHAT_TTLS:
        await http.chat(extra_body=fields)
        await http.sdk.responses.create(model=MODEL, input="Hi", extra_body=fields)
    seconds = [one.keep_ns // S for one in http.stack.scheduler.added]
    assert seconds == [expected for _, expected in CHAT_TTLS for _ in range(2)]


def marked(ttl: str | None = None) -> dict[str, Any]:
    return {"cache_control": {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})}


def said(mark: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "Hi", **mark}]}


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"cache_control": {"type": "ephemeral"}}, 300),
        ({"system": [{"type": "text", "text": SYSTEM, **marked("1h")}]}, 3600),
        ({"tools": [{"name": "f", "input_schema": {"type": "object"}, **marked("1h")}]}, 3600),
        (
            {
                "system": [{"type": "text", "text": SYSTEM, **marked("1h")}],
                "messages": [said(marked())],
            },
            3600,
        ),
        ({"messages": [said(marked())]}, 300),
        ({}, 0),
    ],
)
async def test_the_longest_mark_of_a_message_counts(fields: dict[str, Any], seconds: int) -> None:
    async with make_messages() as messages:
        await messages.whole(**fields)
        (added,) = messages.http.stack.scheduler.added
        assert added.keep_ns == seconds * S
        assert added.session == b""


def test_an_agent_marks_its_prompt_where_marks_are_looked_for() -> None:
    assert prefix_ttl_s(MessagesBody.model_validate(recorded("claude_code").body)) == 300


async def test_a_time_over_grpc(http: Http) -> None:
    request = make_generate()
    request.prefix_ttl.FromMilliseconds(1500)
    async for _ in http.stack.client.Generate(request):
        pass
    assert http.stack.scheduler.added[0].keep_ns == 1_500_000_000
    request.prefix_ttl.FromSeconds(-1)
    refused = http.stack.client.Generate(request)
    assert await code_of(refused.read()) is grpc.StatusCode.INVALID_ARGUMENT


def test_the_times_are_those_of_the_official_clients() -> None:
    for ours, theirs in (
        (PromptCacheOptions, response_create_params.PromptCacheOptions),
        (CacheControl, CacheControlEphemeralParam),
    ):
        (values, _) = get_args(ours.model_fields["ttl"].annotation)  # the other is None
        assert {*get_args(values)} == {*get_args(get_type_hints(theirs)["ttl"])}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"prompt_cache_options": {"ttl": "1d"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_retention": "1d"}, "prompt_cache_retention"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    http: Http, fields: dict[str, Any], param: str
) -> None:
    for path, asked in (
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/responses", {"input": "Hi"}),
    ):
        answer = await http.raw.post(path, content=json.dumps({**asked, **fields}))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
