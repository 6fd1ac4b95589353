"""The HTTP server beside the gRPC one: what it says of itself, traces, the end."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from fastapi.openapi.models import OpenAPI
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.config import RouterConfig
from signalbox_router.main import Router
from signalbox_rpc.http import port_limits
from signalbox_rpc.transport.listening_ports import PortInUse
from tests.router.apis.inference.test_chat import TEMPLATE
from tests.router.apis.openai.clients import HI, Http, make_http
from tests.router.fakes import finished, ids_of, make_files, step
from tests.router.insight.test_request_span import TRACE_ID, TRACEPARENT, attributes_of, exporter
from tests.router.stack import Outputs
from tests.rpc.http.http_parsers import accepted
from tests.waiting import EVENT_S, eventually

__all__ = ["exporter"]  # a fixture


def beginning(add: scheduler_pb2.Request) -> Outputs:
    yield step((add.handle, 0, ids_of("one")))


async def test_each_name_of_the_model_is_listed_and_taken() -> None:
    async with make_http(served_model_name=("gpt-4o", "org/other", "tiny")) as http:
        cards = [model async for model in http.sdk.models.list()]
        assert [card.id for card in cards] == ["tiny", "gpt-4o", "org/other"]
        assert (await http.sdk.models.retrieve("org/other")).id == "org/other"
        for card in cards:
            answer = await http.sdk.completions.create(model=card.id, prompt="hi")
            assert answer.model == "tiny"
        over_grpc = await http.stack.client.GetModel(pb.GetModelRequest())
        assert [over_grpc.name, *over_grpc.aliases] == [card.id for card in cards]
        with pytest.raises(openai.NotFoundError):
            await http.sdk.completions.create(model="another", prompt="hi")


async def test_models_health_and_version() -> None:
    async with make_http(version="1.2.3") as http:
        (card,) = [model async for model in http.sdk.models.list()]
        assert (card.id, card.object) == ("tiny", "model")
        assert (await http.sdk.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError):
            await http.sdk.models.retrieve("org/other")
        assert (await http.raw.get("/version")).json() == {"version": "1.2.3"}
        assert (await http.raw.get("/health")).status_code == 200
        http.stack.scheduler.has_worker = False
        await http.stack.wait_serving(False)
        assert (await http.raw.get("/health")).status_code == 503
        answer = await http.raw.post("/v1/completions", json={"prompt": "a"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_tokenize_and_detokenize_are_inverse(http: Http) -> None:
    body = {"prompt": "Paris 東", "return_token_strs": True}
    answer = (await http.raw.post("/tokenize", json=body)).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["token_strs"][:2] == ["<s>", "Pa"]
    assert "".join(answer["token_strs"]).endswith("ĠæĿ±")  # as the vocabulary spells them
    assert answer["max_model_len"] == 2048
    body = {"prompt": "Paris 東", "add_special_tokens": False}
    ids = (await http.raw.post("/tokenize", json=body)).json()["tokens"]
    assert answer["tokens"][1:] == ids == ids_of("Paris 東")
    text = (await http.raw.post("/detokenize", json={"tokens": ids})).json()
    assert text == {"prompt": "Paris 東"}


async def test_the_root_says_what_this_is() -> None:
    async with make_http(version="1.2.3") as http:
        about = (await http.raw.get("/")).json()
        assert (about["name"], about["version"]) == ("Signalbox", "1.2.3")
        assert about["models"] == ["tiny"]
        assert (await http.raw.get(about["docs"])).status_code == 200
        http.stack.scheduler.has_worker = False
        await http.stack.wait_serving(False)
        assert (await http.raw.get("/")).json()["models"] == []


async def test_load_counts_the_requests_that_live() -> None:
    async with make_http(beginning) as http:
        assert (await http.raw.get("/load")).json() == {"server_load": 0}
        create: Any = http.sdk.chat.completions.create
        stream = await create(model="tiny", messages=HI, stream=True)
        await anext(aiter(stream))
        assert (await http.raw.get("/load")).json() == {"server_load": 1}
        await stream.close()
        await http.stack.check_nothing_is_left()
        assert (await http.raw.get("/load")).json() == {"server_load": 0}


async def test_the_tokenizer_is_described_as_vllm_does() -> None:
    token = {"__type": "AddedToken", "content": "</s>", "lstrip": False}
    files = make_files(chat_template=TEMPLATE, eos_token=token, vocab_file="/secret/vocab.json")
    async with make_http(files=files) as http:
        info = (await http.raw.get("/tokenizer_info")).json()
        assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")
        assert info["chat_template"] == TEMPLATE
        assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert "secret" not in json.dumps(info)


async def test_the_api_describes_itself(http: Http) -> None:
    schema = (await http.raw.get("/openapi.json")).json()
    schemas = schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            declared = {one["name"] for one in operation.get("parameters", ())}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert operation["description"]
            assert {"200", "401", "500", "503"} <= operation["responses"].keys()
    chat = schema["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert chat.keys() >= {"400", "404", "409", "413", "429", "504"}
    assert chat["200"]["content"].keys() == {"application/json", "text/event-stream"}
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)):
        assert name in schemas
    assert len(schemas) > 15
    for name, described in schemas.items():
        assert described["description"], name
        for field, property_ in described["properties"].items():
            assert property_.get("description") or "$ref" in property_, (name, field)
    OpenAPI.model_validate(schema)


async def test_the_docs_need_no_other_host(http: Http) -> None:
    page = await http.raw.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "://" not in page.text
    links = re.findall(r"(?:href|src)=\"([^\"]+)\"|url: '([^']+)'", page.text)
    names = [link or url for link, url in links]
    assert len(names) == 4
    for name in names:
        answer = await http.raw.get(f"/{name}")
        assert (answer.status_code, len(answer.content) > 500) == (200, True), name


@pytest.mark.parametrize("origins", ["*", "https://a.example"])
async def test_pages_of_allowed_origins_may_call(origins: str, tmp_path: Path) -> None:
    ours, other = {"origin": "https://a.example"}, {"origin": "https://b.example"}
    asking = {"access-control-request-method": "POST",
              "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    keys = tmp_path / "keys.yaml"
    keys.write_text("[]")
    async with make_http(allowed_origins=origins) as http:
        answer = await http.raw.post("/tokenize", json={"prompt": "Hi"}, headers=ours)
        assert answer.headers["access-control-allow-origin"] == origins
        refused = await http.raw.post("/tokenize", json={}, headers=ours)
        assert refused.status_code == 400
        assert refused.headers["access-control-allow-origin"] == origins
        answer = await http.raw.get("/version", headers=other)
        assert ("access-control-allow-origin" in answer.headers) is (origins == "*")
    async with make_http(allowed_origins=origins, api_keys=str(keys)) as http:
        preflight = await http.raw.options("/v1/chat/completions", headers=ours | asking)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == origins
        answer = await http.raw.post("/v1/completions", json={"prompt": "a"}, headers=ours)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["access-control-allow-origin"] == origins


async def test_no_page_of_another_origin_may_call_by_default(http: Http) -> None:
    answer = await http.raw.get("/version", headers={"origin": "https://a.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_ids_come_back(http: Http) -> None:
    answer = await http.chat(extra_headers={"x-request-id": "gateway-1"})
    assert answer.id.startswith("chatcmpl-gateway-1-")
    assert answer._request_id == "gateway-1"
    # So `explain` and `trace` know the request by the name that the answer gave it.
    assert http.stack.scheduler.added[0].request_id == answer.id
    both = [http.chat(extra_headers={"x-request-id": "same"}) for _ in range(2)]
    assert len(await asyncio.gather(*both)) == 2  # a gateway's id labels several requests


async def test_a_request_joins_its_callers_trace(
    exporter: InMemorySpanExporter, http: Http
) -> None:
    await http.chat(extra_headers={"traceparent": TRACEPARENT})
    await eventually(lambda: len(exporter.get_finished_spans()) == 3)
    (span,) = [one for one in exporter.get_finished_spans() if one.name == "chat tiny"]
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    attributes = attributes_of(span)
    assert attributes["http.route"] == "/v1/chat/completions"
    assert attributes["http.response.status_code"] == 200
    assert "rpc.method" not in attributes
    sent = http.stack.scheduler.added[0].trace_context.traceparent
    assert sent.split("-")[1] == TRACE_ID


async def test_a_label_as_long_as_may_be_is_no_reason_to_refuse(http: Http) -> None:
    label = "x" * 128
    answer = await http.chat(extra_headers={"x-request-id": label})
    assert answer._request_id == label
    assert answer.id.startswith("chatcmpl-xxxx")


async def test_only_generations_have_spans_and_only_ours(exporter: InMemorySpanExporter) -> None:
    async with make_http() as http:
        await http.raw.get("/health")  # a probe every few seconds is no client's request
        await http.chat()
        await http.raw.get("/v1/models")
        await eventually(lambda: len(exporter.get_finished_spans()) >= 3)
    names = sorted(span.name for span in exporter.get_finished_spans())
    assert names == ["chat tiny", "route", "tokenize"]


async def test_the_tenant_is_the_headers_if_it_is_trusted() -> None:
    async with make_http(trust_tenant_header=True) as http:
        await http.chat(extra_headers={"x-signalbox-tenant": "blue"})
        await http.chat()
        first, second = http.stack.scheduler.added
        assert (first.tenant, first.payer) == ("blue", "")
        assert (second.tenant, second.payer) == ("", "127.0.0.1")


async def test_a_drain_answers_503_and_lets_requests_finish() -> None:
    async with make_http(beginning) as http:
        create: Any = http.sdk.chat.completions.create
        stream = aiter(await create(model="tiny", messages=HI, stream=True))
        await anext(stream)
        draining = asyncio.create_task(http.stack.router.drain(grace_s=30))
        await asyncio.sleep(0)
        answer = await http.raw.get("/health")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert not draining.done()
        handle = http.stack.scheduler.added[0].handle
        http.stack.scheduler.send(step((handle, 0, ids_of("two")), **finished(handle)))
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert "two" in texts
        await asyncio.wait_for(draining, EVENT_S)
        with pytest.raises(httpx2.ConnectError):
            await http.raw.get("/health")


async def test_a_drain_cuts_off_what_takes_too_long() -> None:
    async with make_http(beginning, has_bugs=True) as http:
        create: Any = http.sdk.chat.completions.create
        stream = aiter(await create(model="tiny", messages=HI, stream=True))
        await anext(stream)
        began = time.monotonic()
        await asyncio.wait_for(http.stack.router.drain(grace_s=0.1), EVENT_S)
        assert time.monotonic() - began >= 0.1
        await http.stack.check_nothing_is_left()


async def test_a_port_in_use_is_an_error_with_a_remedy() -> None:
    first = Router(RouterConfig(grpc_port=0, http_port=0))
    await first.start()
    assert first.http is not None
    second = Router(RouterConfig(grpc_port=0, http_port=first.http.port))
    with pytest.raises(PortInUse, match=rf"{first.http.port}.*--port, or --no-http"):
        await second.start()
    for router in (first, second):
        await router.drain(grace_s=0)
        await router.stop()


async def test_a_client_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_limits, "HEAD_S", 0.2)
    async with make_http() as http:
        assert http.stack.router.http is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", http.stack.router.http.port)
        async with asyncio.timeout(EVENT_S):
            assert await reader.read() == b""
        writer.close()


async def test_a_client_that_never_ends_its_head_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with make_http() as http:
        assert http.stack.router.http is not None
        async with accepted(http.stack.router.http.port) as (reader, writer):
            with monkeypatch.context() as hurried:
                hurried.setattr(port_limits, "HEAD_S", 0.2)
                writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n")
                async with asyncio.timeout(EVENT_S):
                    assert (await reader.read())[9:12] == b"408"
        assert (await http.raw.get("/health")).status_code == 200


async def test_an_idle_client_between_two_requests_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with make_http() as http:
        assert http.stack.router.http is not None
        async with accepted(http.stack.router.http.port) as (reader, writer):
            monkeypatch.setattr(port_limits, "HEAD_S", 0.2)
            for _ in range(3):
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                async with asyncio.timeout(EVENT_S):
                    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.4)


async def test_a_request_whose_head_has_come_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with make_http() as http:
        assert http.stack.router.http is not None
        async with accepted(http.stack.router.http.port) as (reader, writer):
            monkeypatch.setattr(port_limits, "HEAD_S", 0.2)
            body = b'{"prompt": "Hi"}'
            head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode())
            await asyncio.sleep(0.6)
            writer.write(body)
            async with asyncio.timeout(EVENT_S):
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
