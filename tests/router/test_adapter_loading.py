"""Adapters are loaded and unloaded over HTTP where it is allowed: on all schedulers, or on none."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_router.schedulers import first_use
from tests.router.apis.openai.clients import MODEL, make_http
from tests.router.fakes import FakeScheduler, finished, ids_of, step
from tests.router.limits.test_api_keys import BEARER, entry, write_keys
from tests.router.stack import make_config, make_generate, routed
from tests.waiting import eventually

ALLOWED = {"allow_adapter_loading": True}
SQL = {"lora_name": "sql", "lora_path": "adapters/sql"}
OLD = common_pb2.Adapter(name="old", sha256="b2" * 32)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def named(raw: httpx2.AsyncClient) -> list[str]:
    answer = (await raw.get("/v1/models")).json()
    return [one["id"] for one in answer["data"]]


async def test_what_is_loaded_is_served_when_the_answer_comes() -> None:
    async with make_http(**ALLOWED) as http:
        answer = await http.raw.post(LOAD, json=SQL)
        assert answer.status_code == 200
        assert answer.text == "Success: LoRA adapter 'sql' added successfully."
        assert await named(http.raw) == [MODEL, "sql"]
        assert http.stack.scheduler.asked == [
            pb.LoadAdapterRequest(name="sql", path="adapters/sql")
        ]
        answer = await http.raw.post(UNLOAD, json={"lora_name": "sql", "lora_int_id": 1})
        assert answer.text == "Success: LoRA adapter 'sql' removed successfully."
        assert await named(http.raw) == [MODEL]
        again = await http.raw.post(UNLOAD, json={"lora_name": "sql"})
        assert (again.status_code, again.json()["error"]["param"]) == (404, "lora_name")


async def test_a_new_version_takes_the_place_of_the_old_one() -> None:
    async with make_http(**ALLOWED) as http:
        answer = await http.raw.post(LOAD, json=SQL | {"load_inplace": True})
        assert answer.status_code == 200
        (asked,) = http.stack.scheduler.asked
        assert isinstance(asked, pb.LoadAdapterRequest) and asked.replace


async def test_a_name_that_is_loaded_is_refused_as_vllm_does() -> None:
    async with make_http(adapters=[OLD], **ALLOWED) as http:
        body = {"lora_name": "old", "lora_path": "adapters/new"}
        answer = await http.raw.post(LOAD, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "lora_name")
        assert "already been loaded" in error["message"]
        answer = await http.raw.post(LOAD, json=body | {"load_inplace": True})
        assert answer.status_code == 200
        await http.stack.scheduler.stop()
        answer = await http.raw.post(LOAD, json=body | {"load_inplace": True})
        assert answer.status_code == 503
        assert "127.0.0.1" not in answer.text  # gRPC's own words have the scheduler's address


async def test_it_is_off_unless_the_operator_allows_it() -> None:
    async with make_http(adapters=[OLD]) as http:
        for path, body in ((LOAD, SQL), (UNLOAD, {"lora_name": "old"})):
            answer = await http.raw.post(path, json=body)
            assert answer.status_code == 403
            assert "--allow-adapter-loading" in answer.json()["error"]["message"]
        assert http.stack.scheduler.asked == []


async def test_what_the_workers_refuse_is_refused_with_their_words() -> None:
    async with make_http(**ALLOWED) as http:
        http.stack.scheduler.adapter_fault = "a worker cannot load it: it ends early"
        answer = await http.raw.post(LOAD, json=SQL)
        assert answer.status_code == 400
        assert "it ends early" in answer.json()["error"]["message"]
        for body, param in (
            ({}, "lora_name"),
            ({"lora_name": "sql"}, "lora_path"),
            ({"lora_name": 1, "lora_path": "x"}, "lora_name"),
            ({"lora_name": "a\nb", "lora_path": "x"}, "lora_name"),
            ({"lora_name": "sql", "lora_path": ""}, "lora_path"),
        ):
            refused = await http.raw.post(LOAD, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        headers = {"content-type": "text/plain"}  # what a web page may send anywhere
        page = await http.raw.post(LOAD, content=json.dumps(SQL), headers=headers)
        assert page.status_code == 415
        alias = await http.raw.post(LOAD, json=SQL | {"lora_name": MODEL})
        assert alias.status_code == 400


async def test_a_key_loads_only_adapters_that_it_may_use(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=["sql"]))
    bearer = dict([BEARER])
    async with make_http(api_keys=keys, **ALLOWED) as http:
        for headers, name, status in (
            ({}, "sql", 401),
            (bearer, "chat", 403),
            (bearer, "sql", 200),
        ):
            body = {"lora_name": name, "lora_path": "somewhere"}
            answer = await http.raw.post(LOAD, json=body, headers=headers)
            assert answer.status_code == status, answer.text


@contextlib.asynccontextmanager
async def two_schedulers() -> AsyncIterator[tuple[FakeScheduler, FakeScheduler, Any]]:
    first, second = FakeScheduler(), FakeScheduler()
    config = make_config(await first.start(), await second.start(), http_port=0, **ALLOWED)
    try:
        async with routed(first, config) as stack:
            await stack.wait_serving()
            await eventually(lambda: stack.router.schedulers.num_serving == 2)
            assert stack.router.http is not None
            url = f"http://{stack.router.http.address}"
            async with httpx2.AsyncClient(base_url=url) as raw:
                yield first, second, (stack, raw)
    finally:
        await second.stop()


async def test_all_schedulers_load_it_or_none() -> None:
    async with two_schedulers() as (first, second, (_, raw)):
        second.adapter_fault = "no such file"
        assert (await raw.post(LOAD, json=SQL)).status_code == 400
        assert first.adapters == second.adapters == []
        second.adapter_fault = ""
        assert (await raw.post(LOAD, json=SQL)).status_code == 200
        assert [one.name for one in (*first.adapters, *second.adapters)] == ["sql", "sql"]
        assert (await raw.post(UNLOAD, json={"lora_name": "sql"})).status_code == 200
        assert first.adapters == second.adapters == []


async def test_the_reason_is_told_also_if_another_scheduler_cannot_take_it_away_again() -> None:
    async with two_schedulers() as (first, second, (_, raw)):
        second.adapter_fault, second.adapter_gate = "no such file", asyncio.Event()
        loading = asyncio.create_task(raw.post(LOAD, json=SQL))
        await eventually(lambda: bool(second.asked))
        first.adapters = []  # an operator was faster
        second.adapter_gate.set()
        answer = await loading
        assert answer.status_code == 400 and "no such file" in answer.text


async def test_requests_go_to_a_scheduler_with_their_adapter() -> None:
    async with two_schedulers() as (first, second, (stack, raw)):
        second.adapters = [OLD]
        second.say_model_changed()
        await eventually(lambda: stack.router.schedulers.models.adapter("old") is not None)
        assert await named(raw) == [MODEL, "old"]
        calls = [stack.client.Generate(make_generate(model="old")) for _ in range(4)]
        await second.wait_until(lambda: len(second.added) == 4)
        assert first.added == []
        for call in calls:
            call.cancel()
        await stack.check_nothing_is_left()


async def test_requests_that_run_lose_nothing_when_adapters_come_and_go() -> None:
    async with make_http(lambda add: (), adapters=[OLD], **ALLOWED) as http:
        call = http.stack.client.Generate(make_generate(model="old"))
        added = await http.stack.added()
        assert (await http.raw.post(LOAD, json=SQL)).status_code == 200
        assert (await http.raw.post(UNLOAD, json={"lora_name": "old"})).status_code == 200
        http.stack.scheduler.send(step((added.handle, 0, ids_of(" Paris"))))
        await call.read()
        http.stack.scheduler.end_stream()  # it goes on with the adapter that it began with
        again = await http.stack.added(2)
        assert (again.attempt, again.adapter) == (1, OLD.sha256)
        http.stack.scheduler.send(step((again.handle, 0, ids_of(" is")), **finished(again.handle)))
        while (message := await call.read()) is not grpc.aio.EOF:
            last = message
        assert last.HasField("usage")


# Adapters of the workers' folder, which load when a request names them


async def ask(raw: httpx2.AsyncClient, model: str, **more: Any) -> httpx2.Response:
    return await raw.post("/v1/completions", json={"model": model, "prompt": "Hi"}, **more)


async def test_a_request_loads_the_adapter_that_it_names() -> None:
    async with make_http(**ALLOWED) as http:
        http.stack.scheduler.adapter_folders = ["sql", "chat"]
        answer = await ask(http.raw, "sql")
        assert (answer.status_code, answer.json()["model"]) == (200, "sql")
        assert http.stack.scheduler.added[-1].adapter == "a1" * 32
        await http.stack.generate(model="chat")
        assert (await ask(http.raw, "chat")).status_code == 200
        assert http.stack.scheduler.asked == [
            pb.LoadAdapterRequest(name=name, path=name, at_first_use=True)
            for name in ("sql", "chat")
        ]
        assert await named(http.raw) == [MODEL, "chat", "sql"]
        await http.stack.check_nothing_is_left()


async def test_requests_of_one_adapter_load_it_once() -> None:
    async with make_http(**ALLOWED) as http:
        scheduler = http.stack.scheduler
        scheduler.adapter_folders, scheduler.adapter_gate = ["sql"], asyncio.Event()
        asking = [asyncio.create_task(ask(http.raw, "sql")) for _ in range(8)]
        await eventually(lambda: http.stack.router.generator.live.num_live == 8)
        scheduler.adapter_gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert len(scheduler.asked) == 1
        await http.stack.check_nothing_is_left()


@pytest.mark.parametrize("name", ["a/b", "..", ".", "/", "../sql", "x" * 101, "a\nb"])
async def test_a_name_that_is_no_folders_is_unknown_at_once(name: str) -> None:
    async with make_http(**ALLOWED) as http:
        assert (await ask(http.raw, name)).status_code == 404
        assert http.stack.scheduler.asked == []


async def test_a_name_without_a_folder_stays_unknown() -> None:
    async with make_http(**ALLOWED) as http:
        answer = await ask(http.raw, "sql")
        assert answer.status_code == 404
        assert "'sql' is not served here" in answer.json()["error"]["message"]
        assert len(http.stack.scheduler.asked) == 1
    async with make_http() as http:  # where adapters are not loaded
        http.stack.scheduler.adapter_folders = ["sql"]
        assert (await ask(http.raw, "sql")).status_code == 404
        assert http.stack.scheduler.asked == []


async def test_an_adapter_that_cannot_be_loaded_is_refused_with_the_reason() -> None:
    async with make_http(**ALLOWED) as http:
        http.stack.scheduler.adapter_fault = "a worker cannot load it: it ends early"
        answer = await ask(http.raw, "sql")
        assert answer.status_code == 400
        assert "it ends early" in answer.json()["error"]["message"]
        await http.stack.check_nothing_is_left()


async def test_a_request_waits_for_its_adapter_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_use, "WAIT_S", 0.0)
    monkeypatch.setattr(first_use, "MAX_LOADS", 1)
    async with make_http(**ALLOWED) as http:
        scheduler = http.stack.scheduler
        scheduler.adapter_folders, scheduler.adapter_gate = ["sql"], asyncio.Event()
        answer = await ask(http.raw, "sql")
        assert answer.status_code == 503 and "still being loaded" in answer.text
        answer = await ask(http.raw, "chat")
        assert answer.status_code == 429 and "are being loaded" in answer.text
        scheduler.adapter_gate.set()  # the load goes on
        model = http.stack.router.schedulers
        await eventually(lambda: model.models.adapter("sql") is not None)
        assert (await ask(http.raw, "sql")).status_code == 200


async def test_a_key_loads_no_adapter_that_it_may_not_use(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=["sql"]))
    bearer = dict([BEARER])
    async with make_http(api_keys=keys, **ALLOWED) as http:
        http.stack.scheduler.adapter_folders = ["sql", "chat"]
        assert (await ask(http.raw, "chat", headers=bearer)).status_code == 403
        assert http.stack.scheduler.asked == []
        assert (await ask(http.raw, "sql", headers=bearer)).status_code == 200


async def test_a_scheduler_without_the_folder_gets_no_request_of_it() -> None:
    async with two_schedulers() as (first, second, (stack, raw)):
        second.adapter_folders = ["sql"]
        for _ in range(4):
            call = stack.client.Generate(make_generate(model="sql"))
            await second.wait_until(lambda: bool(second.added))
            second.added.clear()
            call.cancel()
        assert first.added == [] and await named(raw) == [MODEL, "sql"]
        await stack.check_nothing_is_left()
