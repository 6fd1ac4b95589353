"""Answers of the Responses API, complete or as server-sent events."""

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from signalbox_contract.errors import Code, RpcError
from signalbox_router.apis.agents import omitted_text
from signalbox_router.apis.openai.logprobs import Tokens, chat_logprobs
from signalbox_router.apis.openai.requests.errors import BadRequest, error_body
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.apis.openai.response_fields import encode
from signalbox_router.apis.prefix_diagnostics import of_response
from signalbox_router.apis.responses.input_codec import ReadInput
from signalbox_router.apis.responses.output_items import Item, OutputItems
from signalbox_router.apis.responses.tool_types import Custom, Function, Namespace, OtherTool
from signalbox_router.apis.responses.types import ENCRYPTED, ResponsesBody, dumped
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta, End, Finish, FinishReason

_FAILURES = {
    Code.RESOURCE_EXHAUSTED: "rate_limit_exceeded",
    Code.INVALID_ARGUMENT: "invalid_prompt",
}
_REASONS = {FinishReason.LENGTH: "max_output_tokens"}
Json = dict[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})


class ResponsesAnswer:
    """Converts the updates of one generation to the shape of the Responses API."""

    says_it_waits: ClassVar[bool] = True
    end_of_stream: ClassVar[bytes] = b""

    item_type: ClassVar[type[Item]] = Item

    def __init__(
        self,
        body: ResponsesBody,
        read: ReadInput,
        *,
        response_id: str,
        model: ServedModel,
        said: Mapping[str, Any] = NOTHING,
    ) -> None:
        """Makes the writer of one answer. Raises BadRequest for a body that it cannot repeat.

        Args:
            said: fields in place of those of an answer that nothing keeps.
        """
        self._fields = {**_fields(body, read, response_id, model), **said}
        self.is_stored = False
        self._encoded = _encoded(self._fields)[:-1]
        """The fields that all events with the response have, as JSON."""
        self._output = OutputItems(
            response_id.partition("_")[2],
            read.origins,
            summarizes=body.summarizes,
            encrypts=ENCRYPTED in (body.include or ()),
            item_type=self.item_type,
        )
        tokens = Tokens(model.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._logprobs = _TextLogprobs(tokens) if body.shows_logprobs else None
        self._has_begun = self._is_queued = False
        self._is_compared = body.is_compared
        self._finish: Finish | None = None
        self._last: Update | None = None

    async def whole(self, updates: AsyncIterator[Update]) -> Json:
        async for update in updates:
            self._add(update)
        await self._close()
        return self._whole(self._state())

    def events(self, update: Update) -> bytes:
        opening = ""
        if not self._has_begun:
            self._has_begun = True
            start = begun("in_progress")
            opening = "" if self._is_queued else self._event("created", start)
            opening += self._event("in_progress", start)
        return (opening + self._add(update)).encode()

    async def last_event(self) -> bytes:
        await self._close()
        state = self._state()
        return self._event(state["status"], state).encode()

    def waiting(self) -> bytes:
        """Returns the events of a request in the queue; `created` is the first of any stream."""
        state = begun("queued")
        created = "" if self._is_queued else self._event("created", state)
        self._is_queued = True
        return (created + self._event("queued", state)).encode()

    def failure(self, error: RpcError, body: Body | None) -> bytes:
        """Returns the event of a stream that fails, with the output so far."""
        ended = self._output.end("incomplete")
        return (ended + self._event("failed", self._failed(error, body))).encode()

    def _failed(self, error: RpcError, body: Body | None) -> Json:
        written = error_body(error, body)["error"]
        code = _FAILURES.get(error.code, "server_error")
        return begun("failed") | {
            "error": {"code": code, "message": written["message"]},
            "output": self._output.bodies(),
        }

    async def _close(self) -> None:
        """Called once, when all output is there and before the last event says so."""

    def _add(self, update: Update) -> str:
        if update.end is not None:
            self._last = update
        events = ""
        for delta in update.deltas:
            logprobs = () if self._logprobs is None else self._logprobs.of(delta)
            events += self._output.add(delta, logprobs)
            if delta.finish is not None:
                self._finish = delta.finish
                events += self._output.end(self._status())
        return events

    def _status(self) -> str:
        is_cut = self._finish is not None and self._finish.reason in _REASONS
        return "incomplete" if is_cut else "completed"

    def _state(self) -> Json:
        """Returns the fields that change from event to event, at the end."""
        end = self._last.end if self._last else None
        status, reason = self._status(), _REASONS.get(self._finish.reason) if self._finish else None
        return {
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": self._output.bodies(),
            "usage": _usage(end) if end else None,
            **({"completed_at": int(time.time())} if status == "completed" else {}),
            **({"receipt": end.receipt} if end and end.receipt else {}),
            **self._diagnostics(),
        }

    def _diagnostics(self) -> Json:
        """Returns the field that says what broke the prefix, if the client asks."""
        if not self._is_compared or self._last is None:
            return {}
        watch = self._last.request.watch
        found = of_response(watch.comparison if watch is not None else None)
        return {"prompt_cache_diagnostics": found}

    def _whole(self, state: Mapping[str, Any]) -> Json:
        return {**self._fields, "store": self.is_stored, **state}

    def _event(self, name: str, state: Mapping[str, Any]) -> str:
        """Returns an event with the response."""
        kind = f"response.{name}"
        response = f"{self._encoded},{encode({'store': self.is_stored, **state})[1:]}"
        end = self._output.events.end()
        return f'event: {kind}\ndata: {{"type":"{kind}","response":{response}{end}'


def _encoded(fields: Json) -> str:
    """Returns fields as JSON. Raises BadRequest for a number that is too large for a float."""
    try:
        return encode(fields)
    except ValueError:
        if len(fields) > 1:
            for name, value in fields.items():
                _encoded({name: value})
        (name,) = fields
        raise BadRequest(f"{name}: JSON holds no infinite number", name) from None


def begun(status: str) -> Json:
    """Returns the fields that change from event to event, without output."""
    return {
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }


def _usage(end: End) -> Json:
    usage = end.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": end.num_reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _fields(body: ResponsesBody, read: ReadInput, response_id: str, model: ServedModel) -> Json:
    """Returns the fields of a response that say what was asked for."""
    defaults = model.sampling_defaults.fields()
    metadata = dict(body.metadata or {})
    if read.omitted:
        metadata["omitted_tools"] = omitted_text(read.omitted)
    reasoning, choice = body.reasoning, body.tool_choice
    fields: Json = {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": metadata,
        "model": model.answers_as(body.model or ""),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "temperature": _first(body.temperature, defaults.get("temperature"), 1.0),
        "text": _text(dumped(body.text) or {}),
        "tool_choice": "auto" if choice is None else dumped(choice),
        "tools": [_tool(one) for one in body.tools or () if not isinstance(one, OtherTool)],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _first(body.top_p, defaults.get("top_p"), 1.0),
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }
    if read.input_transformations:
        fields["input_transformations"] = list(read.input_transformations)
    return fields


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _text(asked: Json) -> Json:
    """Returns options of the text with what the type of an answer's requires."""
    format_ = asked.get("format") or {"type": "text"}
    if format_["type"] == "json_schema":
        format_ |= {"name": format_.get("name") or ""}
    return asked | {"format": format_}


def _tool(tool: Function | Custom | Namespace) -> Json:
    asked: Json = dumped(tool)
    if isinstance(tool, Function):
        return {"description": None, "parameters": None, "strict": False} | asked
    if isinstance(tool, Namespace):
        asked["description"] = tool.description or ""
        asked["tools"] = [_tool(one) for one in tool.tools if not isinstance(one, OtherTool)]
    return asked


class _TextLogprobs:
    """Tells the tokens of the text from those of reasoning, of calls and of the end."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._pending = Delta(index=0)
        """Tokens whose text is held back, and may become one of these."""

    def of(self, delta: Delta) -> list[Json]:
        """Returns the log probabilities of the tokens of a delta's text."""
        pending = self._pending
        pending.token_ids += delta.token_ids
        pending.logprobs += delta.logprobs
        if not (delta.text or delta.reasoning or delta.tool_calls):
            return []
        self._pending = Delta(index=0)
        if not delta.text:
            return []
        start, end = self._run(pending.token_ids, delta)
        ids, logprobs = pending.token_ids[start:end], pending.logprobs[start:end]
        written = replace(pending, token_ids=ids, logprobs=logprobs)
        found: list[Json] = chat_logprobs(self._tokens, written, adds_sampled=False)["content"]
        return found

    def _run(self, token_ids: list[int], delta: Delta) -> tuple[int, int]:
        """Returns the tokens that make the text: the first ones before calls, else the last."""
        end = len(token_ids)
        while end and self._tokens.is_special(token_ids[end - 1]):
            end -= 1
        num_needed, num_tokens = len(delta.text.encode()), 0
        for token_id in token_ids[:end] if delta.tool_calls else reversed(token_ids[:end]):
            if num_needed <= 0:
                break
            num_needed -= len(self._tokens.bytes_of(token_id))
            num_tokens += 1
        return (0, num_tokens) if delta.tool_calls else (end - num_tokens, end)
