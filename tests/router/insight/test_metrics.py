"""What the router counts of its requests: each once, under the served model's name."""

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference.servicer import SERVICE_NAME
from signalbox_router.apis.vllm.servicer import SERVICE_NAME as VLLM_SERVICE
from signalbox_router.config import LoggedRequests
from signalbox_rpc.telemetry import logs
from tests.grpc_errors import code_of
from tests.router.apis.openai.clients import Http, make_http
from tests.router.fakes import request_finished, step, token
from tests.router.insight.test_request_span import TRACE_ID, TRACEPARENT, exporter
from tests.router.limits.test_api_keys import BEARER, entry, write_keys
from tests.router.stack import Stack, make_generate, make_stack, saying

__all__ = ["exporter"]  # a fixture

OPENMETRICS = {"accept": "application/openmetrics-text"}


def value(text: str, sample: str) -> float:
    """Returns the value of the sample that begins so."""
    (line,) = [line for line in text.splitlines() if line.startswith(sample)]
    return float(line.rpartition("} ")[2] if "# {" not in line else line.split("} ")[1].split()[0])


async def test_a_request_that_ends_well_is_counted_once() -> None:
    async with make_http() as http:
        answer = await http.complete(max_tokens=9)
        await http.chat_chunks()
        text = (await http.raw.get("/metrics")).text
    for operation in ("text_completion", "chat"):
        sample = f'signalbox_requests_total{{code="OK",model_name="tiny",operation="{operation}"}}'
        assert value(text, sample) == 1
    assert value(text, "signalbox_request_success_total{") == 2
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_time_per_output_token_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_max_num_generation_tokens",
        "request_params_n",
        "request_params_max_tokens",
    ):
        assert value(text, f'signalbox_{name}_count{{model_name="tiny"}}') == 2, name
    num_tokens = value(text, 'signalbox_request_generation_tokens_sum{model_name="tiny"}')
    assert num_tokens == 2 * answer.usage.completion_tokens
    assert value(text, 'signalbox_request_params_n_sum{model_name="tiny"}') == 2
    chat = http.stack.scheduler.added[1]
    asked = value(text, 'signalbox_request_params_max_tokens_sum{model_name="tiny"}')
    assert asked == 9 + chat.max_tokens
    assert "signalbox_router_requests 0.0" in text


async def test_what_is_refused_and_what_is_cancelled_are_told_apart() -> None:
    async with make_http() as http:
        refused = await http.raw.post("/v1/completions", json={"prompt": "a", "top_p": 7})
        assert refused.status_code == 400
        bad = http.stack.generate(sampling_params=pb.SamplingParams(top_p=7), model="")
        assert await code_of(bad) is grpc.StatusCode.INVALID_ARGUMENT
        text = (await http.raw.get("/metrics")).text
        sample = 'signalbox_admission_rejections_total{model_name="tiny",reason="invalid_argument"}'
        assert value(text, sample) >= 1
    async with make_http(lambda add: ()) as http:
        late = asyncio.create_task(http.stack.generate(request_id="c"))
        await http.stack.added()
        assert "signalbox_router_requests 1.0" in (await http.raw.get("/metrics")).text
        late.cancel()
        await http.stack.scheduler.wait_until(lambda: len(http.stack.scheduler.aborted) == 1)
        text = (await http.raw.get("/metrics")).text
        assert value(text, 'signalbox_requests_total{code="CANCELLED"') == 1
        assert "admission_rejections" not in text
        assert "signalbox_router_requests 0.0" in text


def counted(registry: CollectorRegistry, name: str) -> float:
    return registry.get_sample_value(f"signalbox_{name}", {"model_name": "tiny"}) or 0


def end_badly(stack: Stack, call: Any, how: str) -> None:
    match how:
        case "cancelled":
            call.cancel()
        case "failed":
            end = request_finished(stack.scheduler.added[0].handle, code=13, message="no")
            stack.scheduler.send(step(requests=[end]))
        case "aborted":
            stack.router.generator.abort("a")


@pytest.mark.parametrize("num_tokens", [0, 1, 3])
@pytest.mark.parametrize("how", ["cancelled", "failed", "aborted"])
async def test_the_tokens_of_a_request_that_does_not_end_well_are_timed_all_the_same(
    how: str, num_tokens: int
) -> None:
    """Clients who leave because tokens are slow would else make them look fast."""
    async with make_stack(metrics_port=0) as stack:
        call = stack.client.Generate(make_generate(request_id="a"))
        await stack.added()
        for _ in range(num_tokens):
            stack.scheduler.send(step((stack.scheduler.added[0].handle, 0, [token("x")])))
            await anext(aiter(call))
        end_badly(stack, call, how)
        await stack.check_nothing_is_left()
        count = functools.partial(counted, stack.router.registry)
        assert count("time_to_first_token_seconds_count") == min(num_tokens, 1)
        assert count("request_time_per_output_token_seconds_count") == (num_tokens > 1)
        assert count("e2e_request_latency_seconds_count") == 0


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    "body",
    [b"{", b'{"prompt": "a", "max_token": 1}', b"[1]", b'{"prompt": "a", "prompt": "b"}', b""],
)
async def test_a_body_that_is_no_request_is_counted_once(path: str, body: bytes) -> None:
    async with make_http() as http:
        answer = await http.raw.post(f"/v1/{path}", content=body)
        assert answer.status_code == 400
        text = (await http.raw.get("/metrics")).text
    operation = {"completions": "text_completion"}.get(path, "chat")
    labels = f'code="INVALID_ARGUMENT",model_name="tiny",operation="{operation}"'
    assert value(text, f"signalbox_requests_total{{{labels}}}") == 1
    refused = 'signalbox_admission_rejections_total{model_name="tiny",reason="invalid_argument"}'
    assert value(text, refused) == 1


@pytest.mark.parametrize(
    ("service", "method", "operation"),
    [
        (SERVICE_NAME, "Generate", "text_completion"),
        (SERVICE_NAME, "Chat", "chat"),
        (VLLM_SERVICE, "Generate", "text_completion"),
    ],
)
@pytest.mark.parametrize("message", [b"\xff" * 50, b""])
async def test_a_message_that_is_no_request_is_counted_once(
    service: str, method: str, operation: str, message: bytes
) -> None:
    async with make_http() as http:
        send: Any = http.stack.channel.unary_stream(f"/{service}/{method}")
        assert await code_of(anext(aiter(send(message)))) is grpc.StatusCode.INVALID_ARGUMENT
        text = (await http.raw.get("/metrics")).text
    labels = f'code="INVALID_ARGUMENT",model_name="tiny",operation="{operation}"'
    assert value(text, f"signalbox_requests_total{{{labels}}}") == 1
    assert value(text, "signalbox_admission_rejections_total{") == 1


async def test_no_request_to_generate_is_counted_as_one(http: Http) -> None:
    send: Any = http.stack.channel.unary_unary(f"/{SERVICE_NAME}/Tokenize")
    assert await code_of(send(b"\xff")) is grpc.StatusCode.INVALID_ARGUMENT
    assert (await http.raw.post("/tokenize", content=b"{")).status_code == 400
    assert "signalbox_requests_total{" not in (await http.raw.get("/metrics")).text


async def test_what_comes_while_nobody_serves_is_counted_as_a_failure(http: Http) -> None:
    http.stack.scheduler.has_worker = False
    await http.stack.wait_serving(False)
    assert await code_of(http.stack.generate()) is grpc.StatusCode.UNAVAILABLE
    assert (await http.raw.post("/v1/completions", json={"prompt": "a"})).status_code == 503
    text = (await http.raw.get("/metrics")).text
    assert value(text, 'signalbox_requests_total{code="UNAVAILABLE",model_name=""') == 2


async def test_a_name_that_only_a_client_knows_is_no_label(http: Http) -> None:
    await code_of(http.stack.generate(model="made-up"))
    assert "made-up" not in (await http.raw.get("/metrics")).text


async def test_a_slow_request_can_be_found_by_its_trace(exporter: InMemorySpanExporter) -> None:
    async with make_http() as http:
        headers = {"traceparent": TRACEPARENT}
        await http.raw.post("/v1/completions", json={"prompt": "a"}, headers=headers)
        text = (await http.raw.get("/metrics", headers=OPENMETRICS)).text
    traced = {line.partition("{")[0] for line in text.splitlines() if TRACE_ID in line}
    assert "signalbox_e2e_request_latency_seconds_bucket" in traced
    assert "signalbox_time_to_first_token_seconds_bucket" in traced


async def test_with_keys_clients_do_not_see_each_others_numbers(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry())
    async with make_http(api_keys=keys, metrics_port=0, metrics_prefix="vllm") as http:
        headers = dict([BEARER])
        assert (await http.raw.get("/metrics")).status_code == 401
        assert (await http.raw.get("/metrics", headers=headers)).status_code == 404
        server = http.stack.router.metrics_server
        assert server is not None
        text = (await http.raw.get(f"http://{server.address}/metrics")).text
        assert "vllm:router_requests" in text
        refused = 'vllm:admission_rejections_total{model_name="",reason="unauthenticated"}'
        assert value(text, refused) == 1


@contextlib.contextmanager
def capture(lines: list[dict[str, str]]) -> Iterator[None]:
    """Appends the request log's lines, as JSON has them, until the block ends."""
    formatter = logs.formatter("router", "json")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(json.loads(formatter.format(record)))  # type: ignore[method-assign]
    named = logging.getLogger("signalbox_router.insight.request_log")
    level = named.level
    named.addHandler(handler)
    named.setLevel(logging.INFO)
    try:
        yield
    finally:
        named.removeHandler(handler)
        named.setLevel(level)


@pytest.mark.parametrize("logged", LoggedRequests)
async def test_prompts_are_in_the_log_only_if_asked_for(logged: LoggedRequests) -> None:
    lines: list[dict[str, str]] = []
    async with make_stack(saying("an answer"), log_requests=logged) as stack:
        with capture(lines):
            async for _ in stack.client.Generate(make_generate(request_id="mine", text="a secret")):
                pass
    assert all(line["request_id"] == "mine" for line in lines)
    assert ("a secret" in str(lines)) == (logged is LoggedRequests.PROMPTS)
    assert "an answer" not in str(lines)
    ended = [line for line in lines if line["message"] == "request ended"]
    assert len(ended) == (logged is not LoggedRequests.NONE)
    for line in ended:
        assert line["finish_reason"] == "length"
        assert line["prompt_tokens"] > 0


async def test_the_log_says_why_a_request_was_refused() -> None:
    lines: list[dict[str, str]] = []
    async with make_stack(log_requests=LoggedRequests.ENDS) as stack:
        with capture(lines), pytest.raises(grpc.aio.AioRpcError):
            async for _ in stack.client.Generate(
                make_generate(request_id="mine", sampling_params={"max_tokens": 0})
            ):
                pass
    (line,) = lines
    assert (line["message"], line["code"]) == ("request failed", "INVALID_ARGUMENT")
    assert line["reason"].startswith("sampling_params.max_tokens: allowed: at least 1")
