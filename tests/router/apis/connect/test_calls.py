"""Connect and gRPC-Web, in each of their forms, against a router with a fake scheduler."""

import asyncio
import gzip
import re
from typing import Any

import grpc
import httpx2
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from signalbox_contract.errors import Code
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.limits.api_keys import HEADER
from tests.router.apis.connect.clients import FORMS, PATH, Form, call, details_of, enclosed
from tests.router.apis.openai.clients import Http, make_http
from tests.router.fakes import ids_of
from tests.router.http.test_server import beginning
from tests.router.insight.test_request_span import TRACE_ID, TRACEPARENT, attributes_of, exporter
from tests.router.stack import saying
from tests.waiting import eventually

__all__ = ["exporter"]  # a fixture

JSON, CONNECT = FORMS[1], FORMS[0]
HI = pb.GenerateRequest(text="Hi", request_id="one", sampling_params={"max_tokens": 7})
BAD = pb.GenerateRequest(text="Hi", sampling_params={"temperature": 9})
MIB = 1 << 20
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.media_type)


def _whole(messages: list[Any]) -> Any:
    """Returns what messages say together, however a stream was cut, without its times."""
    whole, *others = messages
    for one in others:
        text = whole.outputs[0].text + one.outputs[0].text
        whole.MergeFrom(pb.GenerateResponse(usage=one.usage))
        whole.outputs[0].MergeFrom(one.outputs[0])
        whole.outputs[0].text = text
    if isinstance(whole, pb.GenerateResponse):
        whole.ClearField("timings")
    return whole


@forms
async def test_a_call_answers_as_over_grpc(form: Form) -> None:
    async with make_http(saying("The", " capital", " 東京😀")) as http:
        stub = http.stack.client
        for method, request in (
            ("GetModel", pb.GetModelRequest()),
            ("Tokenize", pb.TokenizeRequest(text="Hi 東京", return_texts=True)),
            ("Generate", HI),
        ):
            ask: Any = getattr(stub, method)(request)
            over_grpc = [one async for one in ask] if method == "Generate" else [await ask]
            answer = await call(http.raw, form, method, request)
            assert answer.code is Code.OK
            assert _whole(answer.messages) == _whole(over_grpc)


@forms
@pytest.mark.parametrize("method", ["Generate", "GetModel"])
async def test_an_error_says_what_it_says_over_grpc(form: Form, method: str) -> None:
    request = BAD if method == "Generate" else pb.GetModelRequest(model="naïve\n%")
    async with make_http() as http:
        ask: Any = getattr(http.stack.client, method)(request)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [one async for one in ask] if method == "Generate" else await ask
        answer = await call(http.raw, form, method, request)
        assert (int(answer.code), answer.message) == (
            caught.value.code().value[0],
            caught.value.details(),
        )
        status = rpc_status.from_call(caught.value)
        assert answer.details == (details_of(status) if status else ())
        assert not answer.messages
        http.stack.scheduler.has_worker = False
        await http.stack.wait_serving(False)
        answer = await call(http.raw, form, method, request)
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = 1
        assert answer.code is Code.UNAVAILABLE
        (detail,) = answer.details
        assert detail.endswith(retry.SerializeToString())


@forms
async def test_a_key_is_needed_before_the_body_is_read(form: Form, tmp_path: Any) -> None:
    async with make_http(api_key=["sb-1"]) as http:
        for method, request in (("Generate", HI), ("GetModel", pb.GetModelRequest())):
            for given in ({}, {HEADER: "Bearer wrong"}):
                refused = await call(http.raw, form, method, request, **given)
                assert (refused.code, refused.messages) == (Code.UNAUTHENTICATED, [])
            allowed = await call(http.raw, form, method, request, **{HEADER: "Bearer sb-1"})
            assert (allowed.code, bool(allowed.messages)) == (Code.OK, True)
        assert len(http.stack.scheduler.added) == 1


@forms
async def test_a_deadline_ends_a_stream_and_its_request(form: Form) -> None:
    async with make_http(beginning) as http:
        late = {"grpc_timeout": "300m"} if form.is_web else {"connect_timeout_ms": "300"}
        answer = await call(http.raw, form, "Generate", HI, **late)
        assert answer.code is Code.DEADLINE_EXCEEDED
        assert "".join(one.outputs[0].text for one in answer.messages) == "one"
        await http.stack.check_nothing_is_left()
        assert len(http.stack.scheduler.added) == 1
        past = {"grpc_timeout": "0S"} if form.is_web else {"connect_timeout_ms": "0"}
        answer = await call(http.raw, form, "Generate", HI, **past)
        assert (answer.code, answer.messages) == (Code.DEADLINE_EXCEEDED, [])
        assert len(http.stack.scheduler.added) == 1
        wrong = {"grpc_timeout": "1 S"} if form.is_web else {"connect_timeout_ms": "-1"}
        answer = await call(http.raw, form, "Generate", HI, **wrong)
        assert answer.code is Code.INVALID_ARGUMENT


@forms
async def test_a_client_that_leaves_aborts_its_request(form: Form) -> None:
    async with make_http(beginning) as http:
        content = form.body(HI, "Generate")
        headers = {"content-type": form.type_of("Generate")}
        async with http.raw.stream(
            "POST", f"{PATH}/Generate", content=content, headers=headers
        ) as answer:
            await anext(answer.aiter_raw())
        await eventually(lambda: len(http.stack.scheduler.aborted) == 1)
        await http.stack.check_nothing_is_left()


@forms
@pytest.mark.parametrize("method", ["Generate", "Detokenize"])
async def test_messages_may_be_compressed_both_ways(form: Form, method: str) -> None:
    text = "Paris " * 1000
    request: Any = HI if method == "Generate" else pb.DetokenizeRequest(token_ids=ids_of(text))
    async with make_http(saying(text, "!")) as http:
        headers = {"content-type": form.type_of(method), form.coding_header(method): "gzip"}
        content = form.body(request, method, compress=True)
        if form.is_web or method == "Generate":
            headers[form.accepting_header(method)] = "br, gzip"
        url = f"{PATH}/{method}"
        answer = await http.raw.post(url, content=content, headers=headers)
        read = form.read(answer, method)
        said = (
            "".join(output.text for one in read.messages for output in one.outputs)
            if method == "Generate"
            else read.messages[0].text
        )
        assert (read.code, said) == (Code.OK, text + "!" * (method == "Generate"))
        assert len(answer.content) < 2000 or "content-encoding" in answer.headers
        assert answer.headers[form.coding_header(method)] == "gzip"
        headers[form.coding_header(method)] = "br"
        read = form.read(await http.raw.post(url, content=content, headers=headers), method)
        assert read.code is Code.UNIMPLEMENTED
        assert "gzip" in read.message


async def test_a_trace_goes_on_and_names_the_protocol(exporter: InMemorySpanExporter) -> None:
    async with make_http() as http:
        for form, system in ((JSON, "connectrpc"), (FORMS[2], "grpc")):
            await call(http.raw, form, "Generate", HI, traceparent=TRACEPARENT)
            await eventually(lambda: len(exporter.get_finished_spans()) == 3)
            (span,) = [one for one in exporter.get_finished_spans() if one.kind.name == "SERVER"]
            assert f"{span.context.trace_id:032x}" == TRACE_ID
            attributes = attributes_of(span)
            assert (attributes["rpc.system.name"], attributes["rpc.status_code"]) == (system, "OK")
            assert f"/{attributes['rpc.method']}" == f"{PATH}/Generate"
            exporter.clear()


async def test_what_is_no_call_is_refused(http: Http) -> None:
    async def post(method: str, media_type: str) -> httpx2.Response:
        headers = {"content-type": media_type}
        return await http.raw.post(f"{PATH}/{method}", content=b"{}", headers=headers)

    # A prompt in a URL would be in the logs of proxies; and pages may send GETs anywhere.
    for query in ("", "?message=%7B%7D&encoding=json&connect=v1"):
        answer = await http.raw.get(f"{PATH}/GetModel{query}")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    for method, wrong in (
        ("Generate", "application/json"),
        ("GetModel", "application/connect+json"),
        ("GetModel", "text/plain"),
        ("GetModel", "application/x-www-form-urlencoded"),
    ):
        answer = await post(method, wrong)
        assert answer.status_code == 415
        assert wrong not in answer.headers["accept-post"]
        assert answer.json()["code"] == "invalid_argument"
    answer = await post("Nothing", "application/json")
    assert (answer.status_code, answer.json()["code"]) == (501, "unimplemented")
    for version, code in (("2", Code.INVALID_ARGUMENT), ("1", Code.OK)):
        read = await call(http.raw, JSON, "GetModel", b"{}", connect_protocol_version=version)
        assert read.code is code


@pytest.mark.parametrize(
    ("form", "body", "code"),
    [
        (CONNECT, b"\xff" * 40, Code.INVALID_ARGUMENT),
        (CONNECT, b"", Code.INVALID_ARGUMENT),
        (JSON, b"", Code.INVALID_ARGUMENT),
        (JSON, b"[]", Code.INVALID_ARGUMENT),
        (JSON, b'{"text": "a", "text": "b"}', Code.INVALID_ARGUMENT),
        (JSON, b'{"text": "\\ud800"}', Code.INVALID_ARGUMENT),
        (JSON, b'{"text": "\xff"}', Code.INVALID_ARGUMENT),
        (JSON, b'{"text": "a", "priority": 1e400}', Code.INVALID_ARGUMENT),
        (JSON, b'{"text": "a", "samplingParams": {"temperature": NaN}}', Code.INVALID_ARGUMENT),
        (JSON, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Code.INVALID_ARGUMENT),
        (JSON, b'{"tokenIds": {"ids": [' + b"1," * 400_000 + b"1]}}", Code.INVALID_ARGUMENT),
        (JSON, b'{"text": "' + b"a" * (5 * MIB) + b'"}', Code.INVALID_ARGUMENT),
        (JSON, b'{"text": "' + b"a" * (9 * MIB) + b'"}', Code.RESOURCE_EXHAUSTED),
        (JSON, b'{"text": "a", "noSuchField": {"b": 1}}', Code.OK),
    ],
    ids=range(14),
)
async def test_malformed_and_large_requests_are_refused(
    form: Form, body: bytes, code: Code
) -> None:
    async with make_http() as http:
        answer = await call(http.raw, form, "Generate", body)
        assert answer.code is code
        assert len(http.stack.scheduler.added) == (code is Code.OK)
        good = await call(http.raw, form, "Generate", HI)
        assert good.code is Code.OK


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", Code.INVALID_ARGUMENT),
        (b"\0\0\0", Code.INVALID_ARGUMENT),
        (enclosed(b"{}")[:-1], Code.INVALID_ARGUMENT),
        (enclosed(b"{}") * 2, Code.INVALID_ARGUMENT),
        (enclosed(b"{}", 2), Code.INVALID_ARGUMENT),
        (enclosed(b"{}", 1), Code.INVALID_ARGUMENT),
        (enclosed(gzip.compress(b" " * (64 * MIB)), 1), Code.RESOURCE_EXHAUSTED),
        (enclosed(gzip.compress(b"{}")[:-4], 1), Code.INVALID_ARGUMENT),
    ],
    ids=range(8),
)
async def test_a_stream_has_one_whole_message_within_bounds(
    body: bytes, code: Code, http: Http
) -> None:
    headers = {"content-type": "application/connect+json", "connect-content-encoding": "gzip"}
    answer = await http.raw.post(f"{PATH}/Generate", content=body, headers=headers)
    assert JSON.read(answer, "Generate").code is code
    assert not http.stack.scheduler.added


async def test_a_small_body_may_not_become_a_large_one(http: Http) -> None:
    content = gzip.compress(b'{"text":"' + b"a" * (64 * MIB) + b'"}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = await http.raw.post(f"{PATH}/Tokenize", content=content, headers=headers)
    assert JSON.read(answer, "Tokenize").code is Code.RESOURCE_EXHAUSTED


async def test_unknown_fields_of_json_may_be_refused() -> None:
    async with make_http(unknown_fields="refuse") as http:
        answer = await call(http.raw, JSON, "Tokenize", b'{"text": "a", "txet": "b"}')
        assert answer.code is Code.INVALID_ARGUMENT
        assert "txet" in answer.message


@forms
async def test_a_server_that_ends_says_so(form: Form) -> None:
    async with make_http(beginning) as http:
        running = asyncio.create_task(call(http.raw, form, "Generate", HI))
        await http.stack.added()
        http.stack.router.stop_serving()
        refused = await call(http.raw, form, "GetModel", pb.GetModelRequest())
        assert (refused.code, refused.messages) == (Code.UNAVAILABLE, [])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_pages_of_allowed_origins_may_call() -> None:
    page = {"origin": "https://a.example"}
    names = "authorization,connect-protocol-version,connect-timeout-ms,content-type,x-grpc-web"
    asking = {"access-control-request-method": "POST", "access-control-request-headers": names}
    async with make_http(allowed_origins="https://a.example", api_key=["sb-1"]) as http:
        url = f"{PATH}/GetModel"
        preflight = await http.raw.options(url, headers=page | asking)
        assert preflight.status_code == 200
        allowed = preflight.headers["access-control-allow-headers"].lower()
        assert set(re.split(", *", allowed)) >= set(names.split(","))
        answer = await http.raw.post(url, content=b"{}", headers=page)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["access-control-allow-origin"] == page["origin"]
    async with make_http() as http:
        assert (await http.raw.post(url, content=b"{}", headers=page)).status_code == 403
