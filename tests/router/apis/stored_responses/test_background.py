"""Responses that no client waits for: their events, their end, and routers that die."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openai
import pytest

from signalbox_contract.errors import NotFound
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.apis.stored_responses import background_runs
from signalbox_router.apis.stored_responses.background_runs import (
    BackgroundGeneration,
    BackgroundRuns,
)
from signalbox_router.apis.stored_responses.memory_store import MemoryResponseStore
from signalbox_router.apis.stored_responses.response_store import Bounds, StoreFailed
from signalbox_router.apis.stored_responses.sqlite_store import SqliteStore
from signalbox_router.apis.stored_responses.stored_response import StoredResponse, StoredRow
from tests.router.apis.inference.test_chat import writing
from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.apis.responses.events import built
from tests.router.apis.stored_responses.test_stores import WIDE, response
from tests.router.apis.stored_responses.test_turns import ask
from tests.router.fakes import bytewise_ids, finished, step
from tests.waiting import eventually

TEXT = "The capital of France is Paris, and that of Japan is Tokyo."


def begun(add: scheduler_pb2.Request) -> Iterable[scheduler_pb2.RequestUpdates]:
    """Begins an answer, whose end a test sends."""
    yield step((add.handle, 0, bytewise_ids(TEXT[:40])))


def end_of(add: scheduler_pb2.Request) -> scheduler_pb2.RequestUpdates:
    return step((add.handle, 0, bytewise_ids(TEXT[40:])), **finished(add.handle))


def store_of(http: Http) -> Any:
    return http.stack.router.http._work._store  # type: ignore[union-attr]


async def status_of(http: Http, response_id: str) -> str:
    return str((await http.sdk.responses.retrieve(response_id)).status)


async def until(http: Http, response_id: str, *statuses: str) -> Any:
    while (found := await http.sdk.responses.retrieve(response_id)).status not in statuses:
        pass
    return found


async def test_a_response_is_made_without_its_client() -> None:
    async with make_http(begun) as http:
        queued = await ask(http, background=True)
        assert (queued.status, queued.background, queued.output) == ("queued", True, [])
        running = await until(http, queued.id, "in_progress")
        assert running.output == []
        with pytest.raises(openai.BadRequestError, match="in_progress"):
            await ask(http, previous_response_id=queued.id)
        http.stack.scheduler.send(end_of(http.stack.scheduler.added[0]))
        found = await until(http, queued.id, "completed", "incomplete")
        assert found.output_text == TEXT and found.created_at == queued.created_at
        assert found.usage.output_tokens == len(TEXT)


async def test_its_stream_goes_on_after_any_event() -> None:
    async with make_http(begun) as http:
        responses: Any = http.sdk.responses
        stream = await responses.create(model=MODEL, input="Hi", background=True, stream=True)
        first = []
        async for event in stream:
            first.append(event)
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        response_id, last = first[0].response.id, first[-1].sequence_number
        rest = await responses.retrieve(response_id, stream=True, starting_after=last)
        http.stack.scheduler.send(end_of(http.stack.scheduler.added[0]))
        events = [*first, *[event async for event in rest]]
        assert [one.sequence_number for one in events] == [*range(len(events))]
        assert events[-1].response.output_text == TEXT
        kinds = [one.type.removeprefix("response.") for one in events[:3]]
        assert kinds == ["created", "queued", "in_progress"]
        built(events)
        again = await responses.retrieve(response_id, stream=True)
        assert [one.to_dict() async for one in again] == [one.to_dict() for one in events]


async def test_it_is_cancelled_once_and_deleted() -> None:
    async with make_http(begun) as http:
        queued = await ask(http, background=True)
        await until(http, queued.id, "in_progress")
        for _ in range(2):
            assert (await http.sdk.responses.cancel(queued.id)).status == "cancelled"
        added = http.stack.scheduler.added
        await eventually(lambda: http.stack.scheduler.aborted == [added[0].handle])
        assert await status_of(http, queued.id) == "cancelled"
        other = await ask(http, background=True)
        await until(http, other.id, "in_progress")
        await http.sdk.responses.delete(other.id)
        await eventually(lambda: len(http.stack.scheduler.aborted) == 2)
        http.stack.scheduler.script = writing("ok")
        plain = await ask(http)
        with pytest.raises(openai.BadRequestError, match="not made in the background"):
            await http.sdk.responses.cancel(plain.id)
        with pytest.raises(openai.BadRequestError, match="store"):
            await ask(http, background=True, store=False)


async def test_a_request_that_fails_later_is_a_failed_response() -> None:
    async with make_http(begun) as http:
        queued = await ask(http, "word " * 3000, background=True)
        found = await until(http, queued.id, "failed")
        assert found.error.code == "invalid_prompt"
        stream = await http.sdk.responses.retrieve(queued.id, stream=True)
        kinds = [event.type.removeprefix("response.") async for event in stream]
        assert kinds == ["created", "queued", "in_progress", "failed"]


async def test_what_the_store_can_never_hold_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    async with make_http(begun) as http:
        store = store_of(http)
        queued = await ask(http, background=True)
        await until(http, queued.id, "in_progress")
        stream = await http.sdk.responses.retrieve(queued.id, stream=True)
        store.bounds = Bounds(max_bytes=10, max_age_s=60)
        http.stack.scheduler.send(end_of(http.stack.scheduler.added[0]))
        *_, last = [event async for event in stream]
        assert (last.response.store, last.response.output_text) == (False, TEXT)
        await eventually(lambda: store.usage() == (0, 0))
        with pytest.raises(openai.NotFoundError):
            await http.sdk.responses.retrieve(queued.id)
        assert "--response-store-size" in caplog.text


def die(http: Http) -> None:
    """Does to a router's store what the end of its process does: its lock is gone."""
    store = store_of(http)
    os.close(store._lock._file)
    store._lock._file = None


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(background_runs, "POLL_S", 0.01)
    return {"response_store": f"sqlite:{tmp_path}/kept"}


async def test_another_router_runs_it_once_more_from_its_seed(shared: dict[str, Any]) -> None:
    async with make_http(begun, **shared) as dead, make_http(begun, **shared) as alive:
        queued = await ask(dead, background=True, prompt_cache_key="a")
        await until(dead, queued.id, "in_progress")
        die(dead)
        add = await alive.stack.added()
        (before,) = dead.stack.scheduler.added
        assert add.sampling_params.seed == before.sampling_params.seed
        assert add.prompt_token_ids == before.prompt_token_ids
        assert before.session and not add.session, "whose API key is not known"
        await eventually(lambda: dead.stack.scheduler.aborted)  # it sees that it lost the response
        alive.stack.scheduler.send(end_of(add))
        found = await until(dead, queued.id, "completed", "incomplete")
        assert found.output_text == TEXT


async def test_a_response_whose_routers_die_twice_fails(shared: dict[str, Any]) -> None:
    async with make_http(begun, **shared) as last:
        async with make_http(begun, **shared) as first:
            queued = await ask(first, background=True)
            await until(first, queued.id, "in_progress")
            die(first)
            await last.stack.added()
        async with make_http(begun, **shared) as third:
            die(last)
            found = await until(third, queued.id, "failed")
            assert "2 routers that ran it have ended" in found.error.message
            assert not third.stack.scheduler.added


async def test_a_router_that_ends_leaves_it_to_the_next(shared: dict[str, Any]) -> None:
    async with make_http(begun, **shared) as http:
        queued = await ask(http, background=True)
        await until(http, queued.id, "in_progress")
        await http.stack.router.drain(grace_s=0)
    async with make_http(writing(TEXT), **shared) as http:
        assert (await until(http, queued.id, "completed")).output_text == TEXT


async def test_routers_share_cancel_and_streams(shared: dict[str, Any]) -> None:
    async with make_http(begun, **shared) as one, make_http(begun, **shared) as other:
        queued = await ask(one, background=True)
        await until(other, queued.id, "in_progress")
        assert (await other.sdk.responses.cancel(queued.id)).status == "cancelled"
        await eventually(lambda: one.stack.scheduler.aborted)
        queued = await ask(one, background=True)
        await until(other, queued.id, "in_progress")
        stream = await other.sdk.responses.retrieve(queued.id, stream=True)
        one.stack.scheduler.send(end_of(one.stack.scheduler.added[-1]))
        events = [event async for event in stream]
        assert events[-1].response.output_text == TEXT


class LeftStore(MemoryResponseStore):
    """Has responses whose router is gone. Its first write fails."""

    is_shared = True

    def __init__(self, *names: str) -> None:
        super().__init__(WIDE)
        self._left = [response(name, "in_progress").row() for name in names]
        self._has_failed = False
        self.ended: dict[str, str] = {}

    async def adopt(self) -> list[StoredRow]:
        left, self._left = self._left, []
        return left

    async def replace(self, row: StoredRow) -> bool:
        if not self._has_failed:
            self._has_failed = True
            raise StoreFailed("the disk is away", 1.0)
        self.ended[row.id] = StoredResponse.of(row).fields["status"]
        return True


async def test_what_cannot_run_again_fails_though_the_store_fails_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background_runs, "POLL_S", 0.0)
    names = ("resp_a", "resp_b", "resp_c")

    async def resumed(found: StoredResponse) -> BackgroundGeneration | None:
        raise KeyError("a bug") if found.id == "resp_b" else NotFound("its model is gone")

    store = LeftStore(*names)
    runs = BackgroundRuns(store, resumed)
    await runs.start()
    await eventually(lambda: store.ended == dict.fromkeys(names, "failed"))
    await runs.stop()


async def test_what_another_router_takes_over_meanwhile_is_cancelled(tmp_path: Path) -> None:
    one, other = (SqliteStore(str(tmp_path / "kept"), WIDE) for _ in range(2))
    await other.open()
    await one.open()
    await one.keep(response("resp_a", "in_progress"))
    found = await other.find("resp_a", tenant="")
    await one.close()
    assert await other.adopt()

    async def resumed(_: StoredResponse) -> None:
        return None

    runs = BackgroundRuns(other, resumed)
    assert (await runs.cancel(found)).fields["status"] == "cancelled"
    assert (await other.find("resp_a", tenant="")).fields["status"] == "cancelled"
    await runs.stop()
