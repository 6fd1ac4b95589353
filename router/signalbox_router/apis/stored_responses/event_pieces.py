"""Makes events of a response that depend on its text only: pieces of a fixed number of characters.

How many tokens a router receives at once depends on timing. But a client that continues to read the
events of a background response after a given number needs the same events from each router, and
from a second run, which draws the same tokens. The events of a complete response are made from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from signalbox_router.apis.responses.output_items import (
    CUSTOM,
    FUNCTION,
    MESSAGE,
    REASONING,
    SUMMARY,
    Events,
    Item,
    ItemKind,
    Logprobs,
)
from signalbox_router.apis.responses.response import begun
from signalbox_router.apis.responses.tools_codec import Origin

PIECE_CHARS = 32
"""Characters of text in an event; the last one of an item may have fewer."""
_OVER = ("completed", "incomplete", "failed")
"""Statuses that name the last event. A cancelled response has no last event."""

_AT_THE_END = ("completed_at", "receipt")
"""Fields that only the last event has."""


@dataclass(slots=True, kw_only=True)
class PiecedItem(Item):
    """An item with pieces of one size in its events; its end events have the logprobs."""

    _rest: str = ""

    def add(self, text: str, logprobs: Logprobs = ()) -> str:
        self.logprobs += logprobs
        self._rest += text
        events = ""
        while len(self._rest) >= PIECE_CHARS:
            piece, self._rest = self._rest[:PIECE_CHARS], self._rest[PIECE_CHARS:]
            events += Item.add(self, piece)
        return events

    def end(self, status: str) -> str:
        rest, self._rest = self._rest, ""
        return (Item.add(self, rest) if rest else "") + Item.end(self, status)


def split(events: str) -> list[bytes]:
    """Returns each event of a text with several."""
    return [f"{one}\n\n".encode() for one in events.split("\n\n")[:-1]]


def replayed(response: dict[str, Any]) -> list[bytes]:
    """Returns all events of a complete response."""
    events, status = Events(), response["status"]
    head = {name: value for name, value in response.items() if name not in _AT_THE_END}

    def with_response(name: str, body: dict[str, Any]) -> str:
        return events.write(f"response.{name}", {"response": body})

    def at_first(name: str, state: str) -> str:
        return with_response(name, head | begun(state))

    if response["background"]:
        text = at_first("created", "queued") + at_first("queued", "queued")
    else:
        text = at_first("created", "in_progress")
    text += at_first("in_progress", "in_progress")
    text += "".join(_of_items(response["output"], events))
    if status in _OVER:
        text += with_response(status, response)
    return split(text)


def _of_items(items: list[dict[str, Any]], events: Events) -> Iterator[str]:
    for index, body in enumerate(items):
        kind, text, logprobs = _contents(body)
        item = PiecedItem(
            kind=kind,
            id=body["id"],
            index=index,
            events=events,
            encrypts="encrypted_content" in body,
            call_id=body.get("call_id", ""),
            origin=Origin(body.get("name", ""), body.get("namespace")),
        )
        yield item.begin() + item.add(text, logprobs) + item.end(body.get("status", "completed"))


def _contents(body: dict[str, Any]) -> tuple[ItemKind, str, Logprobs]:
    """Returns the kind of an item, its text and the log probabilities of its text."""
    match body["type"]:
        case "message":
            kind, parts = MESSAGE, body["content"]
        case "reasoning" if body["summary"]:
            kind, parts = SUMMARY, body["summary"]
        case "reasoning":
            kind, parts = REASONING, body["content"]
        case other:
            kind = CUSTOM if other == "custom_tool_call" else FUNCTION
            return kind, body[kind.text], ()
    logprobs = [one for part in parts for one in part.get("logprobs") or ()]
    return kind, "".join(part["text"] for part in parts), logprobs
