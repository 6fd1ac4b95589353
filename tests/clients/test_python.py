"""The Python client, both kinds, against a router."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from scripts import sync_client
from signalbox_client import Answer, AsyncClient, Chunk, Client, FieldViolation, RequestError
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.apis.inference.servicer import SERVICE_NAME
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.server import Server
from signalbox_rpc.transport.tls import TlsConfig
from tests.clients.routers import ANSWER, MAX_TOKENS, QUESTION, running_router
from tests.router.fakes import MAX_MODEL_LEN, MODEL_NAME, ids_of, request_finished, step
from tests.router.stack import make_stack
from tests.rpc.certificates import Authority
from tests.waiting import EVENT_S, eventually

STOP = scheduler_pb2.FINISH_REASON_STOP
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]


async def in_a_thread(address: str, use: Callable[[Client], Any], **settings: Any) -> Any:
    """Runs what blocks beside the router's event loop."""

    def run() -> Any:
        with Client(address, **settings) as client:
            return use(client)

    return await asyncio.to_thread(run)


def test_the_client_that_waits_is_the_one_for_asyncio() -> None:
    assert sync_client.TARGET.read_text("utf-8") == sync_client.text()


async def test_an_answer_is_text_and_what_it_took() -> None:
    async with running_router() as stack:
        answer = await in_a_thread(
            stack.address,
            lambda client: client.chat(QUESTION, max_tokens=MAX_TOKENS, request_id="a"),
        )
        async with AsyncClient(stack.address) as client:
            other = await client.generate(QUESTION, max_tokens=MAX_TOKENS, request_id="a")
        for one in (answer, other):
            assert (one.text, one.finish_reason, one.request_id) == (ANSWER, "stop", "a")
            assert one.usage.completion_tokens == len(one.outputs[0].token_ids)


async def test_a_stream_yields_pieces_of_text() -> None:
    def read(client: Client) -> list[str]:
        with client.stream_chat(TURNS, max_tokens=MAX_TOKENS) as stream:
            return list(stream)

    async with running_router() as stack:
        pieces = await in_a_thread(stack.address, read)
        assert "".join(pieces) == ANSWER
        async with AsyncClient(stack.address) as client:
            stream = client.stream_chat(TURNS, max_tokens=MAX_TOKENS)
            assert "".join([piece async for piece in stream]) == stream.answer.text == ANSWER


async def test_chunks_are_what_comes_of_every_sequence() -> None:
    def script(add: scheduler_pb2.Request) -> list[scheduler_pb2.RequestUpdates]:
        pieces = [(add.handle, index, ids_of(text)) for index, text in ((0, "The"), (1, "Paris"))]
        ends = [
            scheduler_pb2.FinishedSequence(handle=add.handle, index=index, reason=STOP)
            for index in (0, 1)
        ]
        return [step(*pieces), step(sequences=ends, requests=[request_finished(add.handle)])]

    def read(client: Client) -> tuple[list[Chunk], Answer]:
        with client.stream_generate(QUESTION, n=2) as stream:
            return list(stream.chunks()), stream.answer

    async with make_stack(script) as stack:
        chunks, answer = await in_a_thread(stack.address, read)
        async with AsyncClient(stack.address) as client:
            stream = client.stream_generate(QUESTION, n=2)
            others = [chunk async for chunk in stream.chunks()]
        for found, whole in ((chunks, answer), (others, stream.answer)):
            deltas = [delta for chunk in found for delta in chunk.deltas]
            assert {delta.index for delta in deltas} == {0, 1}
            assert [output.text for output in whole.outputs] == ["The", "Paris"]
            for index, output in enumerate(whole.outputs):
                own = [delta for delta in deltas if delta.index == index]
                assert "".join(delta.text for delta in own) == output.text
                assert [delta.finish_reason for delta in own][-1] == output.finish_reason == "stop"
            assert found[-1].usage == whole.usage is not None


async def test_a_prompt_may_be_token_ids() -> None:
    async with running_router() as stack:
        for_threads = await in_a_thread(
            stack.address, lambda client: client.generate([5, 6], max_tokens=MAX_TOKENS)
        )
        async with AsyncClient(stack.address) as client:
            answer = await client.generate((7, 8), max_tokens=MAX_TOKENS)
        assert for_threads.text == answer.text == ANSWER
        assert [list(add.prompt_token_ids) for add in stack.scheduler.added] == [[5, 6], [7, 8]]


async def test_what_is_served_and_its_tokens_are_plain_values() -> None:
    def ask(client: Client) -> list[Any]:
        tokens = client.tokenize(ANSWER, add_special_tokens=False)
        back = client.detokenize([token.id for token in tokens])
        return [client.model(), client.load(), tokens, back]

    async with running_router() as stack:
        model, load, tokens, text = answers = await in_a_thread(stack.address, ask)
        assert (model.name, model.max_model_len) == (MODEL_NAME, 4 * MAX_MODEL_LEN)
        assert load.num_live_requests == 0 < load.max_live_requests
        assert [token.id for token in tokens] == ids_of(ANSWER)
        assert "".join(token.text for token in tokens) == text == ANSWER
        async with AsyncClient(stack.address) as client:
            tokens = await client.tokenize(ANSWER, add_special_tokens=False)
            text = await client.detokenize([token.id for token in tokens])
            assert [await client.model(), await client.load(), tokens, text] == answers
            with pytest.raises(RequestError, match="INVALID_ARGUMENT"):
                await client.detokenize([1 << 31])


async def test_leaving_a_stream_aborts_the_request() -> None:
    def leave(client: Client) -> None:
        with client.stream_generate(QUESTION) as stream:
            assert next(iter(stream)) == "The"

    async with running_router() as stack:
        await in_a_thread(stack.address, leave)
        async with AsyncClient(stack.address) as client, client.stream_generate(QUESTION) as stream:
            assert await anext(aiter(stream)) == "The"
        await eventually(lambda: len(stack.scheduler.aborted) == 2)


async def test_cancel_ends_an_iteration_elsewhere_without_an_error() -> None:
    def read_and_cancel(client: Client) -> list[str]:
        stream = client.stream_generate(QUESTION)
        pieces = []
        for piece in stream:
            pieces.append(piece)
            stream.cancel()
        return pieces

    async with running_router() as stack:
        assert await in_a_thread(stack.address, read_and_cancel) == ["The"]
        async with AsyncClient(stack.address) as client:
            stream = client.stream_generate(QUESTION)
            reading = asyncio.create_task(_read(stream))
            await eventually(lambda: stream.answer.text == "The")
            stream.cancel()
            assert await asyncio.wait_for(reading, EVENT_S) == ["The"]
        await eventually(lambda: len(stack.scheduler.aborted) == 2)


async def _read(stream: Any) -> list[str]:
    return [piece async for piece in stream]


async def test_a_cancelled_task_stays_cancelled() -> None:
    async with running_router() as stack, AsyncClient(stack.address) as client:
        stream = client.stream_generate(QUESTION)
        reading = asyncio.create_task(_read(stream))
        await eventually(lambda: stream.answer.text == "The")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await eventually(lambda: len(stack.scheduler.aborted) == 1)


async def test_a_deadline_is_an_error_with_its_code() -> None:
    async with running_router() as stack:
        with pytest.raises(RequestError) as caught:
            await in_a_thread(stack.address, lambda client: client.chat(QUESTION, timeout_s=0.3))
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        async with AsyncClient(stack.address) as client:
            with pytest.raises(RequestError, match="DEADLINE_EXCEEDED"):
                await client.chat(QUESTION, timeout_s=0.3)


async def test_an_error_tells_the_field_and_when_to_come_back() -> None:
    async with running_router() as stack:
        with pytest.raises(RequestError) as caught:
            await in_a_thread(stack.address, lambda client: client.chat(QUESTION, temperature=9))
        expected = FieldViolation("sampling_params.temperature", "allowed: [0, 2]; given: 9.0")
        assert caught.value.violations == (expected,)
        assert caught.value.retry_after_s is None
        stack.scheduler.has_worker = False
        await stack.wait_serving(False)
        async with AsyncClient(stack.address) as client:
            with pytest.raises(RequestError) as late:
                await client.model_name()
        assert late.value.code is grpc.StatusCode.UNAVAILABLE
        assert late.value.retry_after_s == 1.0


async def test_options_go_where_they_belong_and_unknown_ones_are_refused() -> None:
    async with running_router() as stack, AsyncClient(stack.address) as client:
        assert await client.model_name() == MODEL_NAME
        await client.chat(
            TURNS, max_tokens=7, seed=3, cache_salt="s", json_schema={"type": "object"}
        )
        (add,) = stack.scheduler.added
        assert (add.max_tokens, add.sampling_params.seed, add.cache_salt) == (7, 3, "s")
        assert add.sampling_params.structured_output.json_schema == '{"type": "object"}'
        with pytest.raises(ValueError, match="max_token"):
            client.stream_chat(QUESTION, max_token=7)
        with pytest.raises(ValueError, match="one of system, user, assistant"):
            client.stream_chat([{"role": "robot", "content": "beep"}])
        with pytest.raises(ValueError, match="'reasoned'"):
            client.stream_chat([{"role": "assistant", "content": "a", "reasoned": "Well."}])
        thought = {"role": "assistant", "content": None, "reasoning": "Well."}
        await client.chat([{"role": "user", "content": "Hi"}, thought], max_tokens=7)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": 1 << 40}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"n": "two"}, "n"),
        ({"request_id": "\udcff"}, "request_id"),
        ({"timeout_s": float("nan")}, "timeout_s"),
    ],
)
async def test_what_no_message_holds_is_refused_by_its_name(
    options: dict[str, Any], named: str
) -> None:
    async with running_router() as stack, AsyncClient(stack.address) as client:
        for ask in (client.generate, client.chat):
            with pytest.raises(ValueError, match=f"^{named}\\b"):
                await ask(QUESTION, **options)
        with pytest.raises(ValueError, match=r"^text: .*UTF-8"):
            await client.generate("\udcff")
        assert not stack.scheduler.added


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e30])
async def test_a_deadline_that_is_never_reached_is_none(timeout_s: float) -> None:
    async with running_router() as stack:
        async with AsyncClient(stack.address) as client:
            assert (
                await client.chat(QUESTION, max_tokens=MAX_TOKENS, timeout_s=timeout_s)
            ).text == ANSWER
        answer = await in_a_thread(
            stack.address,
            lambda client: client.chat(QUESTION, max_tokens=MAX_TOKENS, timeout_s=timeout_s),
        )
        assert answer.text == ANSWER


class Showing(inference_pb2_grpc.InferenceServiceServicer):
    """Answers with the key that it was shown."""

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        return pb.GetModelResponse(name=dict(context.invocation_metadata())["authorization"])


async def test_certificates_and_a_key_go_with_each_call(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = Server(Endpoint(tls=authority.member("127.0.0.1")))
    server.add(
        Showing(), inference_pb2_grpc.add_InferenceServiceServicer_to_server, name=SERVICE_NAME
    )
    await server.start()
    cert, key = authority.issue("client")
    shown = {"tls_ca": authority.file, "tls_cert": cert, "tls_key": key, "api_key": "sb-1"}
    try:
        named = await in_a_thread(server.address, lambda client: client.model_name(), **shown)
        async with AsyncClient(server.address, **shown) as client:
            assert await client.model_name() == named == "Bearer sb-1"
        async with AsyncClient(server.address, tls_ca=authority.file) as stranger:
            with pytest.raises(RequestError, match="UNAVAILABLE"):
                await stranger.model_name()
    finally:
        await server.drain(grace_s=0)


async def test_a_certificate_may_be_for_another_name_than_the_address(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("router.example")
    server = Server(Endpoint(tls=TlsConfig(cert=cert, key=key)))
    server.add(
        Showing(), inference_pb2_grpc.add_InferenceServiceServicer_to_server, name=SERVICE_NAME
    )
    await server.start()
    asked: dict[str, Any] = {"tls_ca": authority.file, "api_key": "sb-1"}
    try:
        async with AsyncClient(server.address, **asked) as client:
            with pytest.raises(RequestError, match="UNAVAILABLE"):
                await client.model_name()
        named = {**asked, "tls_server_name": "router.example"}
        async with AsyncClient(server.address, **named) as client:
            assert await client.model_name() == "Bearer sb-1"
        assert await in_a_thread(server.address, lambda client: client.model_name(), **named)
    finally:
        await server.drain(grace_s=0)


async def test_a_channel_of_ones_own_carries_the_calls() -> None:
    async with running_router() as stack:
        channel = grpc.aio.insecure_channel(stack.address)
        async with AsyncClient("nobody is here", channel=channel) as client:
            assert await client.model_name() == MODEL_NAME
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        blocking = grpc.insecure_channel(stack.address)
        name = await in_a_thread("nobody", lambda client: client.model_name(), channel=blocking)
        assert name == MODEL_NAME


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_cert": "a"},
        {"tls_cert": "a", "tls_key": "b"},
        {"tls_server_name": "router"},
        {"api_key": "a\n"},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Client("127.0.0.1:1", **settings)
