"""One router before schedulers of several models: each request goes to the model that it names."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from tests.grpc_errors import code_of, details_of
from tests.router.apis.inference.test_chat import TEMPLATE, writing
from tests.router.fakes import FakeScheduler, make_files
from tests.router.generation.pooling.pooling_stack import (
    EMBEDS,
    SCORES,
    counts,
    make_inputs,
    make_pooling_files,
    pooling,
)
from tests.router.limits.test_api_keys import BEARER, entry, write_keys
from tests.router.stack import Stack, make_config, make_generate, routed, text_of
from tests.waiting import eventually

StatusCode = grpc.StatusCode
SQL = common_pb2.Adapter(name="sql", sha256="a1" * 32)
HI = [{"role": "user", "content": "Hi"}]


def chat_scheduler(name: str = "chat") -> FakeScheduler:
    scheduler = FakeScheduler(writing("ok"))
    scheduler.model_name, scheduler.files = name, make_files(chat_template=TEMPLATE)
    return scheduler


def pooling_scheduler(
    name: str = "vectors", model: common_pb2.PoolingModel = EMBEDS
) -> FakeScheduler:
    scheduler = FakeScheduler(pooling(counts))
    scheduler.model_name, scheduler.pooling = name, model
    scheduler.files = make_pooling_files()
    return scheduler


@dataclass(frozen=True, slots=True)
class Both:
    """A router, its schedulers, and a client of each API."""

    stack: Stack
    raw: httpx2.AsyncClient
    schedulers: tuple[FakeScheduler, ...]

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        return await self.raw.post(path, json=body)

    async def names(self) -> list[str]:
        return [card["id"] for card in (await self.raw.get("/v1/models")).json()["data"]]

    async def embed(self, model: str = "") -> pb.EmbedResponse:
        return await self.stack.client.Embed(pb.EmbedRequest(inputs=make_inputs("a"), model=model))

    async def until_served(self, number: int) -> None:
        models = self.stack.router.schedulers.models
        await eventually(lambda: len(models.served) == number)


@contextlib.asynccontextmanager
async def serving(*schedulers: FakeScheduler, **config: Any) -> AsyncIterator[Both]:
    """A router that knows the models of all schedulers; nothing is left in the end."""
    addresses = [await one.start() for one in schedulers]
    config = {"http_port": 0, **config}
    try:
        async with routed(schedulers[0], make_config(*addresses, **config)) as stack:
            await eventually(lambda: stack.router.schedulers.num_serving == len(schedulers))
            assert stack.router.http is not None
            url = f"http://{stack.router.http.address}"
            async with httpx2.AsyncClient(base_url=url) as raw:
                yield Both(stack, raw, schedulers)
                await stack.check_nothing_is_left()
    finally:
        for one in schedulers[1:]:
            await one.stop()


async def test_each_request_goes_to_the_model_that_it_names() -> None:
    async with serving(chat_scheduler(), pooling_scheduler()) as both:
        chat, vectors = both.schedulers
        for model in ("chat", ""):
            assert text_of(await both.stack.generate(model=model)) == "ok"
        for model in ("vectors", ""):
            assert len((await both.embed(model)).embeddings) == 1
        assert (len(chat.added), len(vectors.added)) == (2, 2)
        for model in ("chat", None):
            answer = await both.post("/v1/chat/completions", model=model, messages=HI)
            assert answer.json()["model"] == "chat"
            answer = await both.post("/v1/completions", model=model, prompt="Hi")
            assert answer.json()["model"] == "chat"
        for path, body in (
            ("/v1/embeddings", {"input": "a"}),
            ("/pooling", {"input": "a"}),
            ("/v1/score", {"text_1": "a", "text_2": "b"}),
            ("/v2/rerank", {"query": "a", "documents": ["b"]}),
        ):
            for model in ("vectors", None):
                answer = await both.post(path, model=model, **body)
                assert (answer.status_code, answer.json()["model"]) == (200, "vectors"), path
        assert len(chat.added) == 6 and len(vectors.added) > 6


async def test_a_model_is_named_as_the_command_line_did() -> None:
    chat, vectors = chat_scheduler(), pooling_scheduler()
    chat.started_as, vectors.started_as = ["/srv/chat.gguf", "both"], ["org/vectors", "both"]
    async with serving(chat, vectors) as both:
        answer = await both.post("/v1/chat/completions", model="/srv/chat.gguf", messages=HI)
        assert answer.json()["model"] == "chat"
        assert text_of(await both.stack.generate(model="/srv/chat.gguf")) == "ok"
        assert (await both.post("/v1/embeddings", model="org/vectors", input="a")).is_success
        assert (await both.raw.get("/v1/models//srv/chat.gguf")).json()["root"] == "chat"
        for model in ("both", "/srv/../srv/chat.gguf", "vectors.gguf"):
            answer = await both.post("/v1/chat/completions", model=model, messages=HI)
            assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
        assert await both.names() == ["chat", "vectors"]
        listed = await both.stack.client.ListModels(pb.ListModelsRequest())
        assert not [alias for one in listed.models for alias in one.aliases]


async def test_a_model_of_the_wrong_kind_is_refused_by_name() -> None:
    async with serving(chat_scheduler(), pooling_scheduler()) as both:
        for asked in (both.stack.generate(model="vectors"), both.embed("chat")):
            assert await code_of(asked) is StatusCode.FAILED_PRECONDITION
        answer = await both.post("/v1/embeddings", model="chat", input="a")
        assert answer.status_code == 400 and "'chat' generates text" in answer.text
        answer = await both.post("/v1/completions", model="vectors", prompt="a")
        assert answer.status_code == 400 and "'vectors' cannot generate" in answer.text
        answer = await both.post("/classify", model="vectors", input="a")
        assert answer.status_code == 400 and "'vectors' cannot classify" in answer.text
        assert await code_of(both.embed("other")) is StatusCode.NOT_FOUND
        answer = await both.post("/v1/embeddings", model="other", input="a")
        assert answer.status_code == 404
        assert "'chat' and 'vectors' are" in answer.json()["error"]["message"]
        assert not any(one.added for one in both.schedulers)


async def test_a_request_that_names_no_model_is_refused_where_several_can_answer() -> None:
    schedulers = [chat_scheduler("one"), chat_scheduler("two"), pooling_scheduler()]
    async with serving(*schedulers, pooling_scheduler("ranks", SCORES)) as both:
        with pytest.raises(grpc.aio.AioRpcError, match="'one' or 'two'") as refused:
            await both.stack.generate()
        assert refused.value.code() is StatusCode.INVALID_ARGUMENT
        assert details_of(refused.value).details
        answer = await both.post("/v1/completions", prompt="Hi")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        assert await code_of(both.stack.client.GetModel(pb.GetModelRequest()))
        assert (await both.post("/v1/embeddings", input="a")).json()["model"] == "vectors"
        assert (await both.post("/classify", input="a")).json()["model"] == "ranks"
        answer = await both.post("/v1/score", text_1="a", text_2="b")
        assert answer.status_code == 400 and "'vectors' or 'ranks'" in answer.text
        assert (await both.post("/v1/completions", model="two", prompt="Hi")).status_code == 200
        assert [len(one.added) for one in schedulers] == [0, 1, 1]


async def test_lists_and_descriptions_are_of_all_models() -> None:
    async with serving(
        chat_scheduler(), pooling_scheduler(), served_model_name=("gpt", "chat")
    ) as both:
        assert await both.names() == ["chat", "gpt", "vectors"]
        assert (await both.raw.get("/")).json()["models"] == ["chat", "vectors"]
        card = (await both.raw.get("/v1/models/vectors")).json()
        assert (card["id"], card["root"]) == ("vectors", "vectors")
        assert (await both.raw.get("/v1/models/other")).status_code == 404
        ask = both.stack.client.GetModel
        for asked, name in (("", "chat"), ("gpt", "chat"), ("vectors", "vectors")):
            told = await ask(pb.GetModelRequest(model=asked))
            assert (told.name, told.HasField("pooling")) == (name, name == "vectors")
        assert await code_of(ask(pb.GetModelRequest(model="other"))) is StatusCode.NOT_FOUND
        listed = await both.stack.client.ListModels(pb.ListModelsRequest())
        assert [(one.name, list(one.aliases)) for one in listed.models] == [
            ("chat", ["gpt"]),
            ("vectors", []),
        ]


async def test_texts_are_tokenised_by_the_tokenizer_of_the_model_that_is_named() -> None:
    async with serving(chat_scheduler(), pooling_scheduler()) as both:
        lengths = {}
        for name in ("chat", "vectors"):
            asked = await both.stack.client.Tokenize(pb.TokenizeRequest(text="a", model=name))
            over_http = (await both.post("/tokenize", model=name, prompt="a")).json()
            assert over_http["tokens"] == list(asked.token_ids)
            back = await both.post("/detokenize", model=name, tokens=list(asked.token_ids))
            assert "a" in back.json()["prompt"]
            lengths[name] = len(asked.token_ids)
        assert lengths == {"chat": 2, "vectors": 3}  # the second model's texts have an end token
        ambiguous = both.stack.client.Tokenize(pb.TokenizeRequest(text="a"))
        assert await code_of(ambiguous) is StatusCode.INVALID_ARGUMENT
        assert (await both.post("/tokenize", prompt="a")).status_code == 400
        infos = [
            (await both.raw.get("/tokenizer_info", params=asked)).json()
            for asked in ({}, {"model": "chat"}, {"model": "vectors"})
        ]
        assert infos[0] == infos[1] and infos[0]["chat_template"] == TEMPLATE
        assert infos[2]["chat_template"] != TEMPLATE
        for one in both.schedulers:
            assert one.num_tokenizer_calls == 1


async def test_a_tokenizer_lives_as_long_as_a_scheduler_has_its_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[Tokenizer] = []
    close = Tokenizer.close

    def recorded(tokenizer: Tokenizer) -> None:
        closed.append(tokenizer)
        close(tokenizer)

    monkeypatch.setattr(Tokenizer, "close", recorded)
    schedulers = chat_scheduler(), pooling_scheduler(), pooling_scheduler()
    async with serving(*schedulers) as both:
        models = both.stack.router.schedulers.models
        chat, before = models.of("chat").tokenizer, models.of("vectors").tokenizer
        for name, gone, scheduler in zip(
            ("new-0", "new-1"), ([], [before]), schedulers[1:], strict=True
        ):
            scheduler.model_name, scheduler.files = name, make_files()
            scheduler.say_model_changed()
            await eventually(lambda name=name: name in [one.name for one in models.served])
            assert closed == gone
        assert models.of("chat").tokenizer is chat
        after = models.of("new-0").tokenizer
        assert models.of("new-1").tokenizer is after
    assert len(closed) == 3 and {*closed} == {before, chat, after}


async def test_a_lost_model_is_unavailable_while_the_other_goes_on() -> None:
    async with serving(chat_scheduler(), pooling_scheduler()) as both:
        chat, vectors = both.schedulers
        await vectors.stop()
        await both.until_served(1)
        assert await both.names() == ["chat"]
        for model in ("vectors", ""):
            assert await code_of(both.embed(model)) is StatusCode.UNAVAILABLE
        answer = await both.post("/v1/embeddings", model="vectors", input="a")
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert (await both.raw.get("/v1/models/vectors")).status_code == 503
        assert text_of(await both.stack.generate(model="chat")) == "ok"
        assert text_of(await both.stack.generate()) == "ok"
        assert (await both.raw.get("/health")).status_code == 200
        await both.stack.wait_serving()
        await vectors.start()
        await both.until_served(2)
        assert len((await both.embed()).embeddings) == 1
        await chat.stop()
        await both.until_served(1)
        assert await code_of(both.stack.generate()) is StatusCode.UNAVAILABLE
        assert len((await both.embed()).embeddings) == 1
        await vectors.stop()
        await both.stack.wait_serving(False)
        assert (await both.raw.get("/health")).status_code == 503


async def test_a_request_waits_for_a_scheduler_of_its_own_model() -> None:
    async with serving(chat_scheduler(), pooling_scheduler(), chat_scheduler("two")) as both:
        chat, _, two = both.schedulers
        chat.script = lambda add: ()
        call = asyncio.create_task(both.stack.generate(model="chat"))
        first = await both.stack.added()
        chat.end_stream()
        again = await both.stack.added(2)
        assert (again.handle, again.attempt) == (first.handle, 1)
        await chat.stop()
        await both.until_served(2)
        chat.script = writing("ok")
        await chat.start()
        assert text_of(await call) == "ok"
        assert not two.added


async def test_a_model_that_comes_later_is_served_without_a_restart() -> None:
    late = pooling_scheduler()
    late.has_worker = False
    chat = chat_scheduler()
    addresses = [await chat.start(), await late.start()]
    try:
        async with routed(chat, make_config(*addresses)) as stack:
            await stack.wait_serving()
            asked = pb.EmbedRequest(inputs=make_inputs("a"), model="vectors")
            assert await code_of(stack.client.Embed(asked)) is StatusCode.UNAVAILABLE
            late.has_worker = True
            models = stack.router.schedulers.models
            await eventually(lambda: len(models.served) == 2)
            assert len((await stack.client.Embed(asked)).embeddings) == 1
            assert text_of(await stack.generate()) == "ok"
            await stack.check_nothing_is_left()
    finally:
        await late.stop()


async def test_the_second_model_of_a_name_gets_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = chat_scheduler(), pooling_scheduler("chat")
    second.has_worker = False
    addresses = [await second.start(), await first.start()]
    try:
        async with routed(first, make_config(*addresses)) as stack:
            await stack.wait_serving()
            second.has_worker = True
            await eventually(lambda: "another model of the name 'chat'" in caplog.text)
            for _ in range(3):
                assert text_of(await stack.generate(model="chat")) == "ok"
            asked = pb.EmbedRequest(inputs=make_inputs("a"), model="chat")
            assert await code_of(stack.client.Embed(asked)) is StatusCode.FAILED_PRECONDITION
            await first.stop()
            models = stack.router.schedulers.models
            await eventually(lambda: [one.task for one in models.served] == ["embed"])
            assert len((await stack.client.Embed(asked)).embeddings) == 1
            assert len(first.added) == 3
            await stack.check_nothing_is_left()
    finally:
        await second.stop()


async def test_a_key_of_one_model_may_not_use_the_other(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=["vectors"]))
    async with serving(chat_scheduler(), pooling_scheduler(), api_keys=keys) as both:
        asked = pb.EmbedRequest(inputs=make_inputs("a", "b"))
        assert len((await both.stack.client.Embed(asked, metadata=[BEARER])).embeddings) == 2
        for model in ("chat", ""):
            call = both.stack.client.Generate(make_generate(model=model), metadata=[BEARER])
            assert await code_of(call.read()) is StatusCode.PERMISSION_DENIED
            tokenize = pb.TokenizeRequest(text="a", model=model or "chat")
            call = both.stack.client.Tokenize(tokenize, metadata=[BEARER])
            assert await code_of(call) is StatusCode.PERMISSION_DENIED
        tokenize = pb.TokenizeRequest(text="a", model="vectors")
        await both.stack.client.Tokenize(tokenize, metadata=[BEARER])
        assert not both.schedulers[0].added


async def test_a_key_is_shown_the_models_that_it_may_use(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=["vectors"]))
    async with serving(chat_scheduler(), pooling_scheduler(), api_keys=keys) as both:
        client, headers = both.stack.client, dict([BEARER])
        listed = await client.ListModels(pb.ListModelsRequest(), metadata=[BEARER])
        assert [one.name for one in listed.models] == ["vectors"]
        await client.GetModel(pb.GetModelRequest(model="vectors"), metadata=[BEARER])
        for name in ("chat", ""):
            call = client.GetModel(pb.GetModelRequest(model=name), metadata=[BEARER])
            assert await code_of(call) is StatusCode.PERMISSION_DENIED
        cards = (await both.raw.get("/v1/models", headers=headers)).json()["data"]
        assert [one["id"] for one in cards] == ["vectors"]
        assert (await both.raw.get("/", headers=headers)).json()["models"] == ["vectors"]
        for path, status in (("vectors", 200), ("chat", 403)):
            answer = await both.raw.get(f"/v1/models/{path}", headers=headers)
            assert answer.status_code == status
        assert (await both.raw.get("/tokenizer_info", headers=headers)).status_code == 403


async def test_metrics_name_the_model_of_each_request() -> None:
    async with serving(chat_scheduler(), pooling_scheduler()) as both:
        await both.stack.generate()
        await both.embed()
        await code_of(both.embed("chat"))
        for operation, model, code in (
            ("text_completion", "chat", "OK"),
            ("embeddings", "vectors", "OK"),
            ("embeddings", "", "FAILED_PRECONDITION"),  # refused before it was a request
        ):
            labels = {"operation": operation, "model_name": model, "code": code}
            value = both.stack.router.registry.get_sample_value("signalbox_requests_total", labels)
            assert value == 1, labels


async def test_adapters_are_those_of_their_model() -> None:
    chat, vectors = chat_scheduler(), pooling_scheduler()
    async with serving(chat, vectors, allow_adapter_loading=True) as both:
        body = {"lora_name": "sql", "lora_path": "sql"}
        assert (await both.post("/v1/load_lora_adapter", **body)).status_code == 200
        assert [one.name for one in chat.adapters] == ["sql"] and not vectors.asked
        await both.stack.generate(model="sql")
        assert chat.added[-1].adapter == "a1" * 32
        taken = body | {"base_model_name": "vectors"}
        for refused in (taken, taken | {"lora_name": "chat"}, {**body, "base_model_name": "x"}):
            answer = await both.post("/v1/load_lora_adapter", **refused)
            assert answer.status_code in (400, 404)
        chat.adapter_folders = ["other"]
        await both.stack.generate(model="other")  # loaded at first use
        assert not vectors.asked and await both.names() == ["chat", "other", "sql", "vectors"]
        assert (await both.post("/v1/unload_lora_adapter", lora_name="sql")).status_code == 200
        assert await both.names() == ["chat", "other", "vectors"]


async def test_an_adapter_says_its_model_where_several_generate() -> None:
    one, two = chat_scheduler("one"), chat_scheduler("two")
    async with serving(one, two, allow_adapter_loading=True) as both:
        body = {"lora_name": "sql", "lora_path": "sql"}
        answer = await both.post("/v1/load_lora_adapter", **body)
        assert answer.status_code == 400 and "'one' or 'two'" in answer.text
        answer = await both.post("/v1/load_lora_adapter", **body, base_model_name="two")
        assert answer.status_code == 200 and not one.asked
        await both.stack.generate(model="sql")
        assert len(two.added) == 1 and not one.added
        two.adapter_folders = ["other"]
        assert await code_of(both.stack.generate(model="other")) is StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("template", "is_for_pairs"),
    [("{{ messages[0].content }}", False), ("{# query, document #}{{ messages[0].role }}", True)],
)
async def test_a_chat_template_of_the_router_is_a_rerankers_only_if_it_is_for_pairs(
    tmp_path: Path, template: str, is_for_pairs: bool
) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(template)
    schedulers = chat_scheduler(), pooling_scheduler("ranks", SCORES)
    async with serving(*schedulers, chat_template=str(path)) as both:
        models = both.stack.router.schedulers.models
        chat, ranks = (models.of(name).tokenizer.settings.info() for name in ("chat", "ranks"))
        assert chat["chat_template"] == template
        assert (ranks["chat_template"] == template) is is_for_pairs


async def test_gateways_of_vllms_protocol_get_the_model_of_each_kind() -> None:
    async with serving(chat_scheduler(), pooling_scheduler()) as both:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(both.stack.channel)
        info = await stub.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest())
        assert (info.served_model_name, info.is_generation) == ("chat", True)
        tokens = vllm_engine_pb2.TokenizedInput(input_ids=[5, 6])
        call = stub.Generate(vllm_engine_pb2.GenerateRequest(tokenized=tokens))
        assert [one async for one in call]
        await stub.Embed(vllm_engine_pb2.EmbedRequest(tokenized=tokens))
        assert [len(one.added) for one in both.schedulers] == [1, 1]


async def test_an_aborted_call_leaves_nothing_at_either_model() -> None:
    async with serving(chat_scheduler(), pooling_scheduler()) as both:
        chat, vectors = both.schedulers
        await both.stack.generate()
        await both.embed()
        await both.post("/v1/embeddings", input="a")
        chat.script = vectors.script = lambda add: ()
        tasks = len(asyncio.all_tasks())  # connections have theirs now
        generation = both.stack.client.Generate(make_generate())
        inputs = make_inputs(*"abcdefgh")
        embedding = both.stack.client.Embed(pb.EmbedRequest(inputs=inputs))
        body = json.dumps({"model": "vectors", "input": ["a", "b"]})
        http = asyncio.create_task(
            both.raw.post(
                "/v1/embeddings", content=body, headers={"content-type": "application/json"}
            )
        )
        await chat.wait_until(lambda: len(chat.added) == 2)
        await vectors.wait_until(lambda: len(vectors.added) == 12)
        generation.cancel()
        embedding.cancel()
        http.cancel()
        await chat.wait_until(lambda: len(chat.aborted) == 1)
        await vectors.wait_until(lambda: len(vectors.aborted) == 10)
        await both.stack.check_nothing_is_left()
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
