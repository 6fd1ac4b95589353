"""An adapter is a model: in lists, in requests of each API, in answers, and for API keys."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.router.apis.inference.test_chat import writing
from tests.router.apis.openai.clients import HI, MODEL, make_http
from tests.router.fakes import finished, ids_of, request_finished, step
from tests.router.limits.test_api_keys import BEARER, code_of, entry, generate, write_keys
from tests.router.stack import make_generate, make_stack
from tests.waiting import eventually

SQL = common_pb2.Adapter(name="sql", sha256="a1" * 32, path="/adapters/sql")
CHAT = common_pb2.Adapter(name="chat", sha256="b2" * 32, path="/adapters/chat")
BOTH = {"adapters": [CHAT, SQL]}


async def test_models_are_the_base_its_aliases_and_its_adapters() -> None:
    async with make_http(**BOTH, served_model_name="another,sql") as http:
        cards = [card async for card in http.sdk.models.list()]
        told = [(card.id, card.root, card.parent) for card in cards]  # type: ignore[attr-defined]
        assert told == [
            (MODEL, MODEL, None),
            ("another", MODEL, None),
            ("chat", "/adapters/chat", MODEL),
            ("sql", "/adapters/sql", MODEL),
        ]
        one = await http.sdk.models.retrieve("sql")
        assert one.parent == MODEL  # type: ignore[attr-defined]
        model = await http.stack.client.GetModel(pb.GetModelRequest())
        assert list(model.adapters) == ["chat", "sql"]


@pytest.mark.parametrize("is_chat", [False, True])
async def test_a_request_names_an_adapter_as_its_model(is_chat: bool) -> None:
    async with make_http(**BOTH) as http:

        async def ask(model: str) -> Any:
            if is_chat:
                return await http.sdk.chat.completions.create(model=model, messages=HI)  # type: ignore[arg-type]
            return await http.sdk.completions.create(model=model, prompt="Hi")

        for model, sha256 in ((MODEL, ""), ("sql", SQL.sha256), ("chat", CHAT.sha256)):
            assert (await ask(model)).model == model
            assert http.stack.scheduler.added[-1].adapter == sha256
        with pytest.raises(openai.NotFoundError, match="'other' is not served"):
            await ask("other")


async def test_grpc_requests_name_adapters_too() -> None:
    async with make_stack(writing("ok"), **BOTH) as stack:
        await stack.generate(model="sql")
        await stack.generate()
        assert [added.adapter for added in stack.scheduler.added] == [SQL.sha256, ""]
        generating = stack.client.Generate(make_generate(model="a1" * 32))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await generating.read()
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_adapter_stays_that_of_a_request_that_is_sent_again() -> None:
    async with make_stack(**BOTH) as stack:
        call = asyncio.create_task(stack.generate(model="sql"))
        first = await stack.added()
        stack.scheduler.send(step((first.handle, 0, ids_of(" Paris"))))
        stack.scheduler.end_stream()
        again = await stack.added(2)
        assert (again.attempt, again.adapter) == (1, SQL.sha256)
        stack.scheduler.send(step((again.handle, 0, ids_of(" nice")), **finished(again.handle)))
        await call


NO_ADAPTER = {"code": grpc.StatusCode.NOT_FOUND.value[0], "message": "the workers have no adapter"}


@pytest.mark.parametrize("is_heard_first", [False, True])
async def test_a_request_on_its_way_gets_the_version_that_replaces_its_adapter(
    is_heard_first: bool,
) -> None:
    newer = common_pb2.Adapter(name="sql", sha256="c3" * 32, path="/adapters/sql")
    async with make_stack(**BOTH) as stack:
        call = asyncio.create_task(stack.generate(model="sql"))
        first = await stack.added()
        assert first.adapter == SQL.sha256
        refusal = step(requests=[request_finished(first.handle, **NO_ADAPTER)])
        if not is_heard_first:
            stack.scheduler.send(refusal)
        stack.scheduler.adapters = [CHAT, newer]
        stack.scheduler.say_model_changed()
        models = stack.router.schedulers.models
        await eventually(lambda: getattr(models.adapter("sql"), "sha256", "") == newer.sha256)
        if is_heard_first:
            stack.scheduler.send(refusal)
        again = await stack.added(2)
        assert (again.attempt, again.adapter) == (0, newer.sha256)
        stack.scheduler.send(step((again.handle, 0, ids_of(" ok")), **finished(again.handle)))
        await call


async def test_a_request_on_its_way_to_an_unloaded_adapter_ends() -> None:
    async with make_stack(**BOTH) as stack:
        call = asyncio.create_task(stack.generate(model="sql"))
        first = await stack.added()
        stack.scheduler.send(step(requests=[request_finished(first.handle, **NO_ADAPTER)]))
        stack.scheduler.adapters = [CHAT]
        stack.scheduler.say_model_changed()
        with pytest.raises(grpc.aio.AioRpcError, match="the workers have no adapter") as error:
            await call
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        assert len(stack.scheduler.added) == 1


async def test_a_request_on_its_way_to_an_adapter_ends_when_its_model_goes() -> None:
    async with make_stack(**BOTH) as stack:
        call = asyncio.create_task(stack.generate(model="sql"))
        first = await stack.added()
        stack.scheduler.send(step(requests=[request_finished(first.handle, **NO_ADAPTER)]))
        stack.scheduler.has_worker = False
        stack.scheduler.say_model_changed()
        with pytest.raises(grpc.aio.AioRpcError, match="no longer served") as error:
            await call
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        await stack.check_nothing_is_left()


async def test_keys_list_adapters_as_they_list_models(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=["sql"]))
    async with make_stack(writing("ok"), api_keys=keys, **BOTH) as stack:
        await generate(stack, BEARER, model="sql")
        for other in ("chat", "", "tiny"):
            denied = generate(stack, BEARER, model=other)
            assert await code_of(denied) is grpc.StatusCode.PERMISSION_DENIED
    keys = write_keys(tmp_path / "others", entry(models=["tiny"]))
    async with make_stack(writing("ok"), api_keys=keys, **BOTH) as stack:
        await generate(stack, BEARER)
        denied = generate(stack, BEARER, model="sql")
        assert await code_of(denied) is grpc.StatusCode.PERMISSION_DENIED
