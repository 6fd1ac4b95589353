"""The items of a stored response's context: those of earlier turns and those of its own input.

Stored items are JSON, and lists are joined as bytes; they are parsed only for the turn that
continues them.
"""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from signalbox_router.apis.agents import encode_reasoning
from signalbox_router.apis.openai.bodies.body_parser import parse
from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.response_fields import to_json
from signalbox_router.apis.responses.item_types import InputItem
from signalbox_router.apis.responses.types import ENCRYPTED, InputTokensBody, PromptBody
from signalbox_router.apis.stored_responses.stored_response import (
    Json,
    StoredResponse,
    joined,
)
from signalbox_router.apis.stored_responses.types import ItemsQuery

_ITEMS: TypeAdapter[Sequence[InputItem]] = TypeAdapter(list[InputItem])
_PREFIXES = {
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
}


def put_before(body: PromptBody, previous: StoredResponse | None) -> bytes:
    """Puts the items of the previous turn in front of a body's input; returns all as JSON."""
    new = _own_items(body)
    if previous is None:
        return new
    earlier = joined(previous.items, to_json(previous.fields["output"]))
    parsed = parse(b'{"input":%b}' % earlier, InputTokensBody).input
    assert isinstance(parsed, list)
    own = body.input if isinstance(body.input, list) else _parsed(new)
    body.input = [*parsed, *own]
    return joined(earlier, new)


def _own_items(body: PromptBody) -> bytes:
    if isinstance(body.input, str):
        return to_json([{"type": "message", "role": "user", "content": body.input}])
    return _ITEMS.dump_json(body.input or [], by_alias=True, exclude_unset=True, exclude_none=True)


def _parsed(items: bytes) -> list[InputItem]:
    return list(_ITEMS.validate_json(items))


def listed(response: StoredResponse, query: ItemsQuery) -> Json:
    """Returns a page of the items as OpenAI lists them. Raises BadRequest."""
    name = response.id.partition("_")[2]
    items = [_shown(item, f"{name}_in{i}") for i, item in enumerate(json.loads(response.items))]
    include_reasoning(items, query.include)
    if not query.is_ascending:
        items.reverse()
    start = 0
    if query.after is not None:
        ids = [item["id"] for item in items]
        if query.after not in ids:
            raise BadRequest("after: the response has no such item", "after")
        start = ids.index(query.after) + 1
    page = items[start : start + query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": start + query.limit < len(items),
    }


def include_reasoning(items: Sequence[Json], include: Sequence[str]) -> None:
    """Adds encrypted_content to reasoning, if that was asked for."""
    if ENCRYPTED not in include:
        return
    for item in items:
        if item["type"] == "reasoning" and not item.get("encrypted_content"):
            parts = item.get("content") or item.get("summary") or []
            text = "".join(part["text"] for part in parts)
            item["encrypted_content"] = encode_reasoning(text)


def _shown(item: Json, name: str) -> Json:
    """Returns an item with all fields of the type that the list has."""
    kind = item.get("type", "message")
    shown = item | {"type": kind, "id": item.get("id") or f"{_PREFIXES.get(kind, 'msg')}_{name}"}
    if kind == "message":
        is_answer = item["role"] == "assistant"
        shown["content"] = _parts(item["content"], is_answer=is_answer)
        return {"status": "completed", **shown}
    if kind == "reasoning":
        return {"summary": [], **shown}
    return shown if kind == "custom_tool_call" else {"status": "completed", **shown}


def _parts(content: str | list[dict[str, Any]], *, is_answer: bool) -> list[Json]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    named = "output_text" if is_answer else "input_text"
    shown = [{**part, "type": named} if part["type"] == "text" else part for part in parts]
    return [{"annotations": [], "logprobs": [], **part} if is_answer else part for part in shown]
