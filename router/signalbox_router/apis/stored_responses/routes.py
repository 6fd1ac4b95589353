"""Handlers of OpenAI's Responses API where responses are kept. See its API reference."""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import ClassVar

from opentelemetry.context import Context
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from signalbox_router.apis.agents import answer_headers
from signalbox_router.apis.openai.bodies.body_reader import BodyReader, Ids
from signalbox_router.apis.openai.generating_api import Generation
from signalbox_router.apis.openai.requests.errors import BadRequest, NoSuchResponse, http_status
from signalbox_router.apis.openai.route import (
    EVENTS,
    JSON,
    OF_A_NAME,
    OF_TOKENS,
    OF_WORK,
    Group,
    Route,
)
from signalbox_router.apis.openai.streaming import NOT_CACHED, WAIT_S, json_content, json_response
from signalbox_router.apis.responses.input_codec import ReadInput, read_input
from signalbox_router.apis.responses.response import ResponsesAnswer
from signalbox_router.apis.responses.routes import ResponsesApi
from signalbox_router.apis.responses.types import LOGPROBS
from signalbox_router.apis.stored_responses.background_runs import (
    BackgroundGeneration,
    BackgroundRuns,
)
from signalbox_router.apis.stored_responses.context_items import (
    include_reasoning,
    listed,
    put_before,
)
from signalbox_router.apis.stored_responses.response_store import ResponseStore
from signalbox_router.apis.stored_responses.stored_answer import BackgroundAnswer, StoredAnswer
from signalbox_router.apis.stored_responses.stored_response import StoredResponse
from signalbox_router.apis.stored_responses.turns import (
    Turn,
    check_goes_on,
    repeated,
    turn_again,
    turn_of,
)
from signalbox_router.apis.stored_responses.types import (
    ItemsQuery,
    RetrieveQuery,
    StoredInputTokensBody,
    StoredResponsesBody,
)
from signalbox_router.generation.call_context import CHAT, CallContext
from signalbox_router.generation.generator import Generator
from signalbox_router.insight.request_span import http_transport
from signalbox_router.limits.payers import payer_of
from signalbox_router.limits.tenants import Tenants
from signalbox_router.prompt.tokenization.kept_tokens import NO_TOKENS
from signalbox_router.schedulers.launcher.launched_models import NotLoaded
from signalbox_router.schedulers.served_models import GENERATING
from signalbox_rpc.http.disconnection import until_disconnected

_PATH = "/v1/responses"
_ONE = f"{_PATH}/{{response_id:response_id}}"
_PREVIOUS = "previous_response_id"
_OF_ONE = (400, *OF_A_NAME)
_COMMENT = b": waiting\n\n"


class _ResponseId(StringConvertor):
    """An id in a path; other names below /v1/responses are no ids."""

    regex = "resp_[^/]+"


register_url_convertor("response_id", _ResponseId())


class StoredResponsesApi(ResponsesApi):
    """The endpoints' handlers."""

    def __init__(
        self, generator: Generator, *, tenants: Tenants, bodies: BodyReader, store: ResponseStore
    ) -> None:
        super().__init__(generator, tenants=tenants, bodies=bodies)
        self._store = store
        self.runs = BackgroundRuns(store, self._resumed)

    async def responses(self, request: Request) -> Response:
        """Answers a conversation, and keeps the answer for later turns."""
        call_context = self._callers.call_context(request, operation=CHAT)
        body, turn = await self._generator.read(
            call_context,
            lambda: self._read(request, call_context),
            until_left=partial(until_disconnected, request.receive),
        )
        with self._generator.reading(call_context):
            headers = answer_headers(request, turn.read)
            if body.background:
                return await self._in_background(turn, call_context, headers)
            generation = Generation([turn.request], self._writer(turn), headers)
        return self._answer(request, body, generation, call_context)

    async def _read(
        self, request: Request, call_context: CallContext
    ) -> tuple[StoredResponsesBody, Turn]:
        """Returns a body and the turn that it asks for."""
        ids = partial(Ids, "resp", request, separator="_")
        body, turn = await self._bodies.read(
            request,
            StoredResponsesBody,
            into=lambda body: self._turn(body, call_context, ids(body.request_id)),
        )
        if turn is None:
            previous = await self._previous(body, call_context.tenant)
            turn = await self._bodies.convert(
                request,
                previous.num_bytes,
                lambda: self._turn(body, call_context, ids(body.request_id), previous),
            )
        assert turn is not None
        return body, turn

    async def input_tokens(self, request: Request) -> Response:
        """Counts the tokens of the prompt that an input becomes."""
        caller = self._callers.identify(request)
        self._generator.models.all()  # raises Unavailable
        body, read = await self._bodies.read(request, StoredInputTokensBody, into=_read_alone)
        kept = NO_TOKENS
        if read is None:
            previous = await self._previous(body, caller.tenant)
            kept = previous.kept
            read = await self._bodies.convert(
                request, previous.num_bytes, lambda: _read_after(body, previous)
            )
        num_tokens = await self._count(request, caller, body, read, kept)
        counted = {"object": "response.input_tokens", "input_tokens": num_tokens}
        return json_response(counted, headers=answer_headers(request, read))

    async def retrieve(self, request: Request) -> Response:
        """Returns a response that was kept, or its events with `stream`."""
        query = RetrieveQuery.of(request.query_params)
        found = await self._found(request)
        if query.streams:
            return _streamed(self.runs.events(found, query.starting_after + 1))
        run = self.runs.of(found.id, tenant=found.tenant)
        if run is not None and run.response is not None:
            found = run.response
        if not query.include:
            return json_content(found.body)
        fields = found.fields
        include_reasoning(fields["output"], query.include)
        if LOGPROBS in query.include and not _has_logprobs(fields["output"]):
            raise BadRequest(f"include: {found.id} was made without {LOGPROBS}", "include")
        return json_response(fields)

    async def delete(self, request: Request) -> Response:
        """Deletes a response; one that runs in the background ends."""
        found = await self._found(request)
        await self._store.remove(found.id, tenant=found.tenant)
        self.runs.forget(found.id, tenant=found.tenant)
        return json_response({"id": found.id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """Lists the items of a response's context."""
        query = ItemsQuery.of(request.query_params)
        return json_response(listed(await self._found(request), query))

    async def cancel(self, request: Request) -> Response:
        """Cancels a response that runs in the background."""
        found = await self._found(request)
        if not found.fields["background"]:
            why = f"response_id: {found.id} was not made in the background"
            raise BadRequest(f"{why}; closing its connection would have ended it", "response_id")
        return json_content((await self.runs.cancel(found)).body)

    ROUTES: ClassVar[tuple[Route, ...]] = (
        Route(_PATH, responses, Group.CHAT, StoredResponsesBody, OF_WORK, (JSON, EVENTS)),
        Route(
            f"{_PATH}/input_tokens", input_tokens, Group.TOKENS, StoredInputTokensBody, OF_TOKENS
        ),
        Route(_ONE, retrieve, Group.CHAT, failures=_OF_ONE, answers=(JSON, EVENTS)),
        Route(_ONE, delete, Group.CHAT, failures=_OF_ONE, method="DELETE"),
        Route(f"{_ONE}/input_items", input_items, Group.CHAT, failures=_OF_ONE),
        Route(f"{_ONE}/cancel", cancel, Group.CHAT, failures=_OF_ONE, method="POST"),
    )

    async def _found(self, request: Request) -> StoredResponse:
        tenant = self._callers.identify(request).tenant
        return await self._store.find(request.path_params["response_id"], tenant=tenant)

    async def _previous(
        self, body: StoredResponsesBody | StoredInputTokensBody, tenant: str
    ) -> StoredResponse:
        response_id = body.previous_response_id or ""
        previous = await self._store.find(response_id, tenant=tenant, param=_PREVIOUS)
        check_goes_on(previous)
        return previous

    def _turn(
        self,
        body: StoredResponsesBody,
        call_context: CallContext,
        ids: Ids,
        previous: StoredResponse | None = None,
    ) -> Turn | None:
        """Returns the turn; None if it continues a response that must be looked up first."""
        if body.previous_response_id is not None and previous is None:
            return None
        if body.background and body.store is False:
            raise BadRequest("background: it needs store, which is false", "background")
        model = self._generator.model_of(body.model or "", GENERATING)
        if body.background and call_context.key is not None:
            call_context.key.check_model(*model.names_of(body.model or ""))
        draft = StoredResponse(
            id=ids.response_id if body.store is False else ids.random_id,
            tenant=call_context.tenant,
            created_at=time.time(),
            body=b"{}",
            items=b"[]",
        )
        return turn_of(body, draft, request_id=ids.of(0, 1), model=model, previous=previous)

    def _writer(self, turn: Turn) -> ResponsesAnswer:
        body, draft, model = turn.body, turn.draft, turn.model
        if body.store is not False:
            return StoredAnswer(body, turn.read, draft=draft, store=self._store, model=model)
        said = {_PREVIOUS: body.previous_response_id}
        return ResponsesAnswer(body, turn.read, response_id=draft.id, model=model, said=said)

    async def _in_background(
        self, turn: Turn, call_context: CallContext, headers: dict[str, str]
    ) -> Response:
        stored = await self.runs.begin(self._work(turn, call_context))
        if turn.body.stream:
            return _streamed(self.runs.events(stored, 0), headers)
        return json_content(stored.body, headers=headers)

    def _work(self, turn: Turn, call_context: CallContext) -> BackgroundGeneration:
        answer = BackgroundAnswer(
            turn.body, turn.read, draft=turn.draft, store=self._store, model=turn.model
        )
        return BackgroundGeneration(
            answer, turn.body, self._generator.generate(turn.request, call_context)
        )

    async def _resumed(self, response: StoredResponse) -> BackgroundGeneration | None:
        """Returns the work that runs a response again; None if no model is served."""
        if not self._generator.models.first:
            return None
        body = repeated(response)
        transport = http_transport(
            method="POST", route=_PATH, is_streamed=False, status_of=http_status
        )
        tenant = response.tenant
        call_context = CallContext(
            operation=CHAT,
            transport=transport,
            parent=Context(),
            time_remaining=lambda: None,
            tenant=tenant,
            payer=payer_of(tenant=tenant, is_named=bool(tenant), address=""),
        )
        resolve = partial(self._generator.model_of, body.model or "", GENERATING)
        with self._generator.reading(call_context):
            try:
                model = resolve()
            except NotLoaded as absent:
                model = await self._generator.when_loaded(absent, resolve, call_context)
        return self._work(turn_again(body, response, model), call_context)


def _read_alone(body: StoredInputTokensBody) -> ReadInput | None:
    if body.previous_response_id is not None:
        return None
    read = read_input(body)
    read.conversation.check()
    return read


def _read_after(body: StoredInputTokensBody, previous: StoredResponse) -> ReadInput:
    put_before(body, previous)
    read = read_input(body)
    read.conversation.check()
    return read


def _has_logprobs(output: list[dict[str, object]]) -> bool:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]  # type: ignore[attr-defined]
    return all(part["logprobs"] for part in parts)


def _streamed(events: AsyncIterator[bytes], headers: dict[str, str] | None = None) -> Response:
    return StreamingResponse(
        _with_comments(events),
        headers={**(headers or {}), **NOT_CACHED},
        media_type="text/event-stream",
    )


async def _with_comments(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields events, and comments when there are none for a while: proxies cut idle connections.

    Ends when the response is deleted.
    """
    pending = asyncio.ensure_future(anext(aiter(events)))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=WAIT_S)
            if not done:
                yield _COMMENT
                continue
            try:
                event = pending.result()
            except (StopAsyncIteration, NoSuchResponse):
                return
            pending = asyncio.ensure_future(anext(aiter(events)))
            yield event
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
