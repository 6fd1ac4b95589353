"""Bodies of the Responses API where responses are kept, and queries about those."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from starlette.datastructures import QueryParams

from signalbox_router.apis.openai.requests.errors import BadRequest
from signalbox_router.apis.openai.requests.foreign_fields import Table
from signalbox_router.apis.responses.request_codec import check_include
from signalbox_router.apis.responses.types import (
    INPUT_TOKENS,
    RESPONSES,
    InputTokensBody,
    ResponsesBody,
)

MAX_ITEMS = 100
_DEFAULT_ITEMS = 20
_INCLUDE = ("include", "include[]")
"""Names of a list in a query: OpenAI's clients write the second."""


def _without_served(table: Table, *served: str) -> Table:
    return {name: row for name, row in table.items() if name not in served}


class StoredResponsesBody(ResponsesBody):
    """Body of POST /v1/responses."""

    FOREIGN = _without_served(RESPONSES, "background", "previous_response_id")

    store: bool | None = None  # type: ignore[assignment]
    """True keeps the response for later turns and requests about it. Default true."""
    previous_response_id: str | None = None
    """Id of the response to continue: the input comes after its items. Its instructions are not
    carried over."""
    background: bool | None = None
    """True generates the response in the background: the answer has its id at once. Needs
    store."""

    @property
    def compared_id(self) -> str | None:
        return super().compared_id or self.previous_response_id


class StoredInputTokensBody(InputTokensBody):
    """Body of POST /v1/responses/input_tokens."""

    FOREIGN = _without_served(INPUT_TOKENS, "previous_response_id")

    previous_response_id: str | None = None
    """Id of the response to continue."""


class RetrieveQuery(NamedTuple):
    """Query of GET /v1/responses/{id}."""

    streams: bool
    starting_after: int
    include: Sequence[str]

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """Raises BadRequest."""
        _check_names(query, "stream", "starting_after", "include_obfuscation", *_INCLUDE)
        if _flag(query, "include_obfuscation"):
            raise BadRequest("include_obfuscation: events are not padded", "include_obfuscation")
        streams = _flag(query, "stream")
        if "starting_after" in query and not streams:
            raise BadRequest("starting_after: it needs stream", "starting_after")
        after = _number(query, "starting_after", -1, 0, 1 << 40)
        return cls(streams, after, _include(query))


class ItemsQuery(NamedTuple):
    """Query of GET /v1/responses/{id}/input_items."""

    after: str | None
    limit: int
    is_ascending: bool
    include: Sequence[str]

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """Raises BadRequest."""
        _check_names(query, "after", "limit", "order", *_INCLUDE)
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BadRequest("order: allowed: asc, desc", "order")
        limit = _number(query, "limit", _DEFAULT_ITEMS, 1, MAX_ITEMS)
        return cls(query.get("after"), limit, order == "asc", _include(query))


def _check_names(query: Mapping[str, str], *names: str) -> None:
    for name in query:
        if name not in names:
            shown = name[:100]
            raise BadRequest(f"Unrecognized request argument supplied: {shown}", shown)


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false").lower()
    if value not in ("true", "false"):
        raise BadRequest(f"{name}: allowed: true, false", name)
    return value == "true"


def _number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not (is_number and least <= int(text) <= most):
        raise BadRequest(f"{name}: allowed: [{least}, {most}]", name)
    return int(text)


def _include(query: QueryParams) -> list[str]:
    names = [one for key in _INCLUDE for one in query.getlist(key)]
    check_include(names)
    return names
