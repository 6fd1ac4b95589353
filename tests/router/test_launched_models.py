"""A router of models that a launcher loads when requests name them."""

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from signalbox_contract.errors import ResourceExhausted, Unavailable
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.operations.v1 import operations_pb2, operations_pb2_grpc
from signalbox_router.schedulers.launcher import launcher_client
from tests.grpc_errors import code_of
from tests.router.apis.inference.test_chat import message as chat_message
from tests.router.fake_launcher import FakeLauncher, State
from tests.router.fakes import FakeScheduler, finished, ids_of, step
from tests.router.generation.pooling.pooling_stack import make_inputs
from tests.router.insight.test_request_span import (
    TRACE_ID,
    TRACEPARENT,
    exporter,
    spans_by_name,
)
from tests.router.limits.test_api_keys import BEARER, entry, write_keys
from tests.router.stack import Stack, make_config, make_generate, routed, text_of
from tests.router.test_several_models import HI, chat_scheduler, pooling_scheduler
from tests.waiting import EVENT_S, eventually

__all__ = ["exporter"]
StatusCode = grpc.StatusCode
JSON = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
def dial_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pause before a router dials a launcher again."""
    monkeypatch.setattr(launcher_client, "RETRY_S", 0.02)


@dataclass(frozen=True, slots=True)
class Launched:
    """A router, its launcher, and a client of each API."""

    stack: Stack
    raw: httpx2.AsyncClient
    launcher: FakeLauncher

    @property
    def operations(self) -> operations_pb2_grpc.OperationsServiceStub:
        return operations_pb2_grpc.OperationsServiceStub(self.stack.channel)

    def scheduler(self, name: str) -> FakeScheduler:
        return self.launcher.schedulers[name]

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        return await self.raw.post(path, json=body)

    async def until_waiting(self, number: int) -> None:
        await eventually(lambda: self.stack.router.starts.num_waiting == number)

    async def until_served(self, *names: str) -> None:
        models = self.stack.router.schedulers.models
        await eventually(lambda: {one.name for one in models.served} == {*names})

    async def until_told(self) -> None:
        """Returns once the router knows the launcher's table."""
        launched = self.stack.router.starts.launched
        await eventually(lambda: launched.revision == self.launcher.revision)

    async def states(self) -> dict[str, str]:
        cards = (await self.raw.get("/v1/models")).json()["data"]
        return {card["id"]: card["status"]["value"] for card in cards}


@contextlib.asynccontextmanager
async def launching(*schedulers: FakeScheduler, **config: Any) -> AsyncIterator[Launched]:
    """A router that knows of a launcher's models; nothing is left in the end."""
    launcher = FakeLauncher(*schedulers)
    addresses = launcher.addresses
    config = {"http_port": 0, "model_launcher": await launcher.start(), **config}
    try:
        async with routed(schedulers[0], make_config(*addresses, **config)) as stack:
            await stack.wait_serving()
            assert stack.router.http is not None
            url = f"http://{stack.router.http.address}"
            async with httpx2.AsyncClient(base_url=url, timeout=EVENT_S) as raw:
                launched = Launched(stack, raw, launcher)
                yield launched
                await stack.check_nothing_is_left()
                await launched.until_waiting(0)
                await eventually(lambda: not launcher.num_calls)
    finally:
        await launcher.stop()
        for one in schedulers:
            await one.stop()


async def test_requests_of_every_api_load_their_model() -> None:
    async with launching(chat_scheduler(), pooling_scheduler()) as both:
        client = both.stack.client
        posts: dict[str, list[tuple[str, dict[str, Any]]]] = {
            "chat": [
                ("/v1/chat/completions", {"messages": HI}),
                ("/v1/completions", {"prompt": "Hi"}),
                ("/v1/responses", {"input": "Hi"}),
                ("/v1/messages", {"messages": HI, "max_tokens": 4}),
                ("/v1/messages/count_tokens", {"messages": HI}),
                ("/tokenize", {"prompt": "Hi"}),
            ],
            "vectors": [
                ("/v1/embeddings", {"input": ["a", "b"]}),
                ("/v2/rerank", {"query": "a", "documents": ["b"]}),
                ("/pooling", {"input": "a"}),
            ],
        }
        for name, calls in posts.items():
            for path, body in calls:
                answer = await both.post(path, model=name, **body)
                assert answer.status_code == 200, (path, answer.text)
                await both.launcher.unload(name)
        texts, messages = make_inputs("a", "b"), [chat_message("Hi")]
        asked = [
            ("chat", lambda: both.stack.generate(model="chat")),
            ("chat", lambda: all_of(client.Chat(pb.ChatRequest(model="chat", messages=messages)))),
            ("chat", lambda: client.Tokenize(pb.TokenizeRequest(model="chat", text="Hi"))),
            ("vectors", lambda: client.Embed(pb.EmbedRequest(model="vectors", inputs=texts))),
        ]
        for name, ask in asked:
            assert await ask()  # type: ignore[no-untyped-call]
            await both.launcher.unload(name)
        calls_of = {name: len(calls) for name, calls in posts.items()}
        assert Counter(both.launcher.asked) == Counter(calls_of) + Counter(chat=3, vectors=1)


async def all_of(call: Any) -> list[Any]:
    return [one async for one in call]


async def test_requests_wait_while_another_model_answers() -> None:
    async with launching(chat_scheduler("one"), chat_scheduler("two")) as both:
        assert text_of(await both.stack.generate(model="one")) == "ok"
        both.launcher.may_load.clear()
        waiting = []
        for number in range(4):
            asked = both.stack.generate(model="two", request_id=f"r{number}")
            waiting.append(asyncio.create_task(asked))
            await both.until_waiting(number + 1)
        assert text_of(await both.stack.generate(model="one")) == "ok"
        assert both.launcher.asked == ["one", "two"] and not both.scheduler("two").added
        both.launcher.may_load.set()
        assert [text_of(await one) for one in waiting] == ["ok"] * 4
        # They go on in order, but threads tokenise their prompts side by side.
        names = {one.request_id for one in both.scheduler("two").added}
        assert names == {f"r{number}" for number in range(4)}
        waited = [add.model_wait_ns for one in ("two", "one") for add in both.scheduler(one).added]
        assert all(waited[:5]) and waited[5:] == [0]  # the first of each model waited, too


async def test_a_model_that_drains_ends_its_answers_and_others_wait_for_its_return() -> None:
    async with launching(chat_scheduler()) as one:
        chat = one.scheduler("chat")
        chat.script = lambda add: ()
        first = asyncio.create_task(one.stack.generate(model="chat"))
        add = await one.stack.added()
        unloading = asyncio.create_task(one.launcher.unload("chat"))
        await one.until_served()
        second = asyncio.create_task(one.post("/v1/completions", model="chat", prompt="Hi"))
        await one.until_waiting(1)
        assert not unloading.done() and len(chat.added) == 1
        chat.send(step((add.handle, 0, ids_of("end")), **finished(add.handle)))
        assert text_of(await first) == "end"
        await unloading
        chat.script = lambda add: [step((add.handle, 0, ids_of("ok")), **finished(add.handle))]
        assert (await second).json()["choices"][0]["text"] == "ok"
        assert len(chat.added) == 2


async def test_the_end_of_a_scheduler_is_logged_unless_the_launcher_has_planned_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "signalbox_router.schedulers.scheduler_client")

    def levels() -> list[int]:
        words = ("lost the scheduler at", "has ended the stream")
        told = [one for one in caplog.records if any(word in one.getMessage() for word in words)]
        return [one.levelno for one in told]

    async with launching(chat_scheduler()) as one:
        await one.launcher.load("chat")
        await one.until_served("chat")
        await one.launcher.unload("chat")
        await eventually(lambda: bool(levels()))
        assert levels() == [logging.DEBUG]
        await one.launcher.load("chat")
        await one.until_served("chat")
        await one.scheduler("chat").stop()  # it dies
        await eventually(lambda: levels() == [logging.DEBUG, logging.WARNING])


async def test_a_model_that_is_unloaded_before_a_request_is_placed_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with launching(chat_scheduler()) as one:
        await one.stack.generate(model="chat")
        admission = one.stack.router.admission
        tokenize, arrived, may_go_on = admission.tokenize, asyncio.Event(), asyncio.Event()

        async def held(*args: Any, **options: Any) -> Any:
            arrived.set()
            await may_go_on.wait()
            return await tokenize(*args, **options)

        monkeypatch.setattr(admission, "tokenize", held)
        call = asyncio.create_task(one.stack.generate(model="chat"))
        await arrived.wait()
        await one.launcher.unload("chat")
        may_go_on.set()
        assert text_of(await call) == "ok"
        assert one.launcher.asked == ["chat"] * 2
        assert one.scheduler("chat").added[-1].model_wait_ns > 0


async def test_a_request_that_has_lost_its_scheduler_waits_for_the_launcher() -> None:
    async with launching(chat_scheduler(), resume_wait=0.0) as one:
        chat = one.scheduler("chat")
        chat.script = lambda add: ()
        call = asyncio.create_task(one.stack.generate(model="chat"))
        await one.stack.added()
        await chat.stop()
        chat.script = lambda add: [step((add.handle, 0, ids_of("ok")), **finished(add.handle))]
        await one.launcher.set("chat", state=State.STATE_UNLOADED)
        assert text_of(await call) == "ok"
        assert one.launcher.asked.count("chat") >= 2


async def test_clients_that_leave_while_they_wait_leave_nothing() -> None:
    async with launching(chat_scheduler()) as one:
        one.launcher.may_load.clear()
        call = one.stack.client.Generate(make_generate(model="chat"))
        reading = asyncio.create_task(call.read())
        body = json.dumps({"model": "chat", "messages": HI})
        posts = [
            asyncio.create_task(one.raw.post(path, content=body, headers=JSON))
            for path in ("/v1/chat/completions", "/v1/messages/count_tokens")
        ]
        await one.until_waiting(3)
        call.cancel()
        for task in posts:
            task.cancel()
        await asyncio.gather(reading, *posts, return_exceptions=True)
        await one.until_waiting(0)
        await eventually(lambda: not one.launcher.num_calls)
        assert not one.scheduler("chat").added
        labels = {"operation": "chat", "model_name": "", "code": "CANCELLED"}
        value = one.stack.router.registry.get_sample_value("signalbox_requests_total", labels)
        assert value == 1


async def test_a_start_that_fails_is_told_with_the_time_of_another_try() -> None:
    async with launching(chat_scheduler(), chat_scheduler("two")) as both:
        both.launcher.refusal = Unavailable("chat.gguf: no such file", 30.0)
        answer = await both.post("/v1/chat/completions", model="chat", messages=HI)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        assert "no such file" in answer.json()["error"]["message"]
        assert await code_of(both.stack.generate(model="chat")) is StatusCode.UNAVAILABLE
        assert both.launcher.asked == ["chat"] * 2
        await both.launcher.set(
            "chat",
            state=State.STATE_FAILED,
            reason="no such file",
            retry_after_ns=600 * 10**9,
        )
        await eventually(lambda: not both.launcher.num_calls)
        await both.until_told()
        answer = await both.post("/v1/chat/completions", model="chat", messages=HI)
        assert answer.status_code == 503 and "may be started again in" in answer.text
        assert 500 < int(answer.headers["retry-after"]) <= 600
        assert both.launcher.asked == ["chat"] * 2
        assert (await both.raw.get("/v1/models/chat")).json()["status"]["failed"]
        both.launcher.refusal = None
        assert text_of(await both.stack.generate(model="two")) == "ok"


async def test_what_cannot_fit_and_what_has_no_room_to_wait_is_refused() -> None:
    async with launching(chat_scheduler(), max_waiting_for_models=1) as one:
        one.launcher.refusal = ResourceExhausted("it needs 80 GiB of 16 GiB")
        assert await code_of(one.stack.generate(model="chat")) is StatusCode.RESOURCE_EXHAUSTED
        answer = await one.post("/v1/completions", model="chat", prompt="Hi")
        assert answer.status_code == 429 and "80 GiB" in answer.text
        one.launcher.refusal = None
        one.launcher.may_load.clear()
        first = asyncio.create_task(one.stack.generate(model="chat"))
        await one.until_waiting(1)
        answer = await one.post("/v1/completions", model="chat", prompt="Hi")
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 0
        one.launcher.may_load.set()
        assert text_of(await first) == "ok"


async def test_a_start_that_takes_too_long_is_unavailable() -> None:
    async with launching(chat_scheduler(), model_start_timeout=0.05) as one:
        one.launcher.may_load.clear()
        answer = await one.post("/v1/chat/completions", model="chat", messages=HI)
        assert answer.status_code == 503 and "was not loaded within 0.05 s" in answer.text
        assert await code_of(one.stack.generate(model="chat")) is StatusCode.UNAVAILABLE
        await eventually(lambda: not one.launcher.num_calls)


async def test_a_launcher_that_is_lost_and_comes_back_is_asked_again() -> None:
    async with launching(chat_scheduler(), chat_scheduler("two")) as both:
        await both.stack.generate(model="two")
        both.launcher.may_load.clear()
        call = asyncio.create_task(both.stack.generate(model="chat"))
        await both.launcher.wait_until(lambda: both.launcher.num_calls == 1)
        await both.launcher.stop()
        assert text_of(await both.stack.generate(model="two")) == "ok"
        both.launcher.may_load.set()
        await both.launcher.start()
        assert text_of(await call) == "ok"


async def test_lists_say_which_models_are_loaded() -> None:
    async with launching(chat_scheduler(), pooling_scheduler()) as both:
        assert await both.states() == {"chat": "unloaded", "vectors": "unloaded"}
        card = (await both.raw.get("/v1/models/vectors")).json()
        assert (card["status"]["state"], card["max_model_len"]) == ("unloaded", 128)
        assert (await both.raw.get("/")).json()["models"] == ["chat", "vectors"]
        assert (await both.raw.get("/health")).status_code == 200
        await both.launcher.load("vectors")
        await both.until_served("vectors")
        assert await both.states() == {"chat": "unloaded", "vectors": "loaded"}
        listed = (await both.stack.client.ListModels(pb.ListModelsRequest())).models
        assert [(one.name, one.state) for one in listed] == [
            ("chat", pb.MODEL_STATE_UNLOADED),
            ("vectors", pb.MODEL_STATE_LOADED),
        ]
        one = await both.stack.client.GetModel(pb.GetModelRequest(model="chat"))
        assert (one.state, one.architecture) == (pb.MODEL_STATE_UNLOADED, "LlamaForCausalLM")
        serving = [
            (await both.stack.health.Check(health_pb2.HealthCheckRequest(service=name))).status
            for name in ("", "chat", "vectors")
        ]
        status = health_pb2.HealthCheckResponse
        assert serving == [status.SERVING, status.NOT_SERVING, status.SERVING]
        assert not both.launcher.asked


async def test_other_names_of_a_model_load_it_and_are_not_listed() -> None:
    async with launching(chat_scheduler(), pooling_scheduler()) as both:
        await both.launcher.set("chat", other_names=["/srv/chat.gguf"])
        await eventually(lambda: both.stack.router.starts.launched.find("/srv/chat.gguf"))
        for _ in range(2):
            answer = await both.post("/v1/completions", model="/srv/chat.gguf", prompt="Hi")
            assert answer.json()["model"] == "chat"
        assert both.launcher.asked == ["chat"]
        assert await both.states() == {"chat": "loaded", "vectors": "unloaded"}
        answer = await both.post("/v1/completions", model="other", prompt="Hi")
        assert answer.status_code == 404 and "'chat' and 'vectors' are" in answer.text
        assert text_of(await both.stack.generate()) == "ok"  # the only one that generates


async def test_a_name_that_two_models_have_loads_neither() -> None:
    async with launching(chat_scheduler("one"), chat_scheduler("two")) as both:
        for name in ("one", "two"):
            await both.launcher.set(name, other_names=["/srv/chat.gguf"])
            both.scheduler(name).started_as = ["/srv/chat.gguf"]
        await both.until_told()
        for names in ([], ["one"], ["one", "two"]):
            for name in names:
                assert text_of(await both.stack.generate(model=name)) == "ok"
            answer = await both.post("/v1/completions", model="/srv/chat.gguf", prompt="Hi")
            assert answer.status_code == 404, names
        assert both.launcher.asked == ["one", "two"]


async def test_a_key_loads_no_model_that_it_may_not_use(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=["vectors"]))
    async with launching(chat_scheduler(), pooling_scheduler(), api_keys=keys) as both:
        call = both.stack.client.Generate(make_generate(model="chat"), metadata=[BEARER])
        assert await code_of(call.read()) is StatusCode.PERMISSION_DENIED
        headers = dict([BEARER])
        body = {"model": "chat", "prompt": "Hi"}
        for path in ("/v1/completions", "/tokenize"):
            assert (await both.raw.post(path, json=body, headers=headers)).status_code == 403
        cards = (await both.raw.get("/v1/models", headers=headers)).json()["data"]
        assert [card["id"] for card in cards] == ["vectors"]
        assert not both.launcher.asked
        embed = pb.EmbedRequest(inputs=make_inputs("a"), model="vectors")
        await both.stack.client.Embed(embed, metadata=[BEARER])
        assert both.launcher.asked == ["vectors"]


async def test_operators_list_load_and_unload_models() -> None:
    async with launching(chat_scheduler(), chat_scheduler("two")) as both:
        load = operations_pb2.OperationsServiceLoadModelRequest
        unload = operations_pb2.OperationsServiceUnloadModelRequest
        await both.operations.LoadModel(load(name="chat"))
        await both.launcher.set("chat", memory_bytes=7)
        both.scheduler("chat").script = lambda add: ()
        call = both.stack.client.Generate(make_generate(model="chat"))
        reading = asyncio.create_task(call.read())
        await both.stack.added()
        both.launcher.may_load.clear()
        waiting = asyncio.create_task(both.stack.generate(model="two"))
        await both.until_waiting(1)
        listed = (await both.operations.ListModels(operations_pb2.ListModelsRequest())).models
        found = [
            (one.model.name, one.model.state, one.num_live_requests, one.num_waiting_requests)
            for one in listed
        ]
        assert found == [("chat", State.STATE_LOADED, 1, 0), ("two", State.STATE_UNLOADED, 0, 1)]
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await both.operations.UnloadModel(unload(name="chat"))
        await both.until_served()
        both.launcher.may_load.set()
        assert text_of(await waiting) == "ok"
        unknown = both.operations.LoadModel(load(name="other"))
        assert await code_of(unknown) is StatusCode.NOT_FOUND
        assert await code_of(both.operations.LoadModel(load())) is StatusCode.INVALID_ARGUMENT


async def test_without_a_launcher_models_are_listed_and_not_loaded() -> None:
    chat = chat_scheduler()
    async with routed(chat, make_config(await chat.start())) as stack:
        await stack.wait_serving()
        operations = operations_pb2_grpc.OperationsServiceStub(stack.channel)
        (one,) = (await operations.ListModels(operations_pb2.ListModelsRequest())).models
        assert (one.model.name, one.model.state) == ("chat", State.STATE_LOADED)
        load = operations.LoadModel(operations_pb2.OperationsServiceLoadModelRequest(name="chat"))
        assert await code_of(load) is StatusCode.FAILED_PRECONDITION
        (listed,) = (await stack.client.ListModels(pb.ListModelsRequest())).models
        assert listed.state == pb.MODEL_STATE_UNSPECIFIED


async def test_a_start_is_a_span_of_the_request_that_caused_it(
    exporter: InMemorySpanExporter,
) -> None:
    async with launching(chat_scheduler()) as one:
        body = json.dumps({"model": "chat", "messages": HI, "stream": True})
        headers = {**JSON, "traceparent": TRACEPARENT}
        answer = await one.raw.post("/v1/chat/completions", content=body, headers=headers)
        assert answer.status_code == 200
        await eventually(lambda: "chat chat" in spans_by_name(exporter))
        spans = spans_by_name(exporter)
        server, wait = spans["chat chat"], spans["wait for model"]
        assert f"{server.context.trace_id:032x}" == TRACE_ID
        assert wait.parent == server.context
        assert server.start_time <= wait.start_time  # type: ignore[operator]
        assert (server.attributes or {})["gen_ai.request.stream"] is True
        assert one.launcher.traces == [f"00-{TRACE_ID}-{wait.context.span_id:016x}-01"]
        await one.launcher.unload("chat")
        await one.stack.generate(model="chat")
        parents = {one.context.span_id for one in exporter.get_finished_spans()}
        assert int(one.launcher.traces[1].split("-")[2], 16) in parents


async def test_metrics_show_who_waits_for_a_model() -> None:
    async with launching(chat_scheduler()) as one:
        value = one.stack.router.registry.get_sample_value
        labels = {"model_name": "chat"}
        one.launcher.may_load.clear()
        call = asyncio.create_task(one.stack.generate(model="chat"))
        await one.until_waiting(1)
        assert value("signalbox_router_requests_waiting_for_model", labels) == 1
        one.launcher.may_load.set()
        await call
        assert value("signalbox_router_requests_waiting_for_model", labels) == 0
        await eventually(lambda: value("signalbox_model_wait_seconds_count", labels) == 1)
        first = value("signalbox_time_to_first_token_seconds_sum", labels)
        waited = value("signalbox_model_wait_seconds_sum", labels)
        assert first is not None and waited is not None and first >= waited > 0
