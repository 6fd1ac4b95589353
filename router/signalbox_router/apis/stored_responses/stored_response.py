"""A stored response, with everything that requests about it and later turns need.

It has the items of its whole context, so that earlier responses may be deleted. It also has the
tokens of its prompt and its answer: the prompt of the next turn begins with exactly these.
"""

import contextlib
import json
import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from signalbox_router.apis.openai.response_fields import to_json
from signalbox_router.apis.stored_responses.shared_pieces import (
    USE_BYTES,
    SharedPiece,
    compress,
    cut,
)
from signalbox_router.prompt.tokenization.kept_tokens import NO_TOKENS, KeptTokens

Json = dict[str, Any]
RUNNING = ("queued", "in_progress")
"""Statuses of a response that is not complete."""
_HEAD = struct.Struct("<B6I")
"""Format; numbers of pieces of the items and of the tokens; lengths of all parts but the last."""
_FORMAT = 2


class DamagedResponse(ValueError):
    """The bytes of a stored response are not what was written."""


class OtherFormat(ValueError):
    """Another version of the router has written a stored response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A response as a store holds it."""

    id: str
    tenant: str
    created_at: float
    """Time in seconds since the epoch."""
    content: bytes
    pieces: Sequence[SharedPiece] = ()
    """Beginnings of its items and of its tokens, which other responses may have, too."""
    is_running: bool = False
    owner: str = ""
    """Name of the router that runs the response; empty if none does."""
    num_runs: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the row, without its pieces."""
        own = len(self.content) + len(self.id) + len(self.tenant)
        return own + USE_BYTES * len(self.pieces)

    @property
    def num_bytes_alone(self) -> int:
        """Bytes of the row if no other response has its pieces."""
        return self.num_bytes + sum(len(piece.content) for piece in self.pieces)

    @property
    def has_other_format(self) -> bool:
        """True if another version of the router wrote it; False if it is damaged."""
        with contextlib.suppress(zlib.error):
            return zlib.decompressobj().decompress(self.content, 1) not in (b"", bytes([_FORMAT]))
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response, with its context."""

    id: str
    tenant: str
    created_at: float
    body: bytes
    """The response as JSON, as clients get it."""
    items: bytes
    """JSON list of the items of its context, oldest first, without instructions and output."""
    kept: KeptTokens = NO_TOKENS
    """Tokens of the prompt and the answer; while it runs, those of the previous turn."""
    request: bytes = b""
    """JSON of the request's fields without the input, while it runs in the background."""
    owner: str = ""
    num_runs: int = 1

    @property
    def fields(self) -> Json:
        fields: Json = json.loads(self.body)
        return fields

    @property
    def is_running(self) -> bool:
        return self.fields["status"] in RUNNING

    @property
    def request_fields(self) -> Json:
        fields: Json = json.loads(self.request)
        return fields

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.items) + 4 * len(self.kept.token_ids)

    def with_body(self, body: Json) -> Self:
        return replace(self, body=to_json(body))

    def row(self) -> StoredRow:
        """Returns what a store holds."""
        answers = array("i", [one for pair in self.kept.answers for one in pair])
        tokens = array("i", self.kept.token_ids)
        of_items, items = cut(self.items, tenant=self.tenant)
        of_tokens, rest = cut(tokens.tobytes(), tenant=self.tenant)
        parts = (self.body, items, self.request, answers.tobytes(), rest)
        lengths = (len(part) for part in parts[:-1])
        head = _HEAD.pack(_FORMAT, len(of_items), len(of_tokens), *lengths)
        return StoredRow(
            id=self.id,
            tenant=self.tenant,
            created_at=self.created_at,
            content=compress(b"".join((head, *parts))),
            pieces=(*of_items, *of_tokens),
            is_running=self.is_running,
            owner=self.owner,
            num_runs=self.num_runs,
        )

    @classmethod
    def of(cls, row: StoredRow) -> Self:
        """Returns the response of a row. Raises DamagedResponse or OtherFormat."""
        if row.has_other_format:
            raise OtherFormat("another version of the router wrote it")
        try:
            content = zlib.decompress(row.content)  # checks its checksum
            pieces = [zlib.decompress(piece.content) for piece in row.pieces]
            _, num_of_items, num_of_tokens, *lengths = _HEAD.unpack_from(content)
        except (zlib.error, struct.error) as error:
            raise DamagedResponse(f"{row.id} is damaged ({error})") from None
        if len(pieces) != num_of_items + num_of_tokens:
            raise DamagedResponse(f"{row.id} is damaged (it lacks pieces)")
        parts, start = [], _HEAD.size
        for length in lengths:
            parts.append(content[start : start + length])
            start += length
        body, items, request, numbers = parts
        items = b"".join((*pieces[:num_of_items], items))
        tokens = b"".join((*pieces[num_of_items:], content[start:]))
        answers = array("i", numbers)
        return cls(
            id=row.id,
            tenant=row.tenant,
            created_at=row.created_at,
            body=body,
            items=items,
            kept=KeptTokens(array("i", tokens), [*zip(answers[::2], answers[1::2], strict=True)]),
            request=request,
            owner=row.owner,
            num_runs=row.num_runs,
        )


def joined(*lists: bytes) -> bytes:
    """Returns lists of JSON as one."""
    inner = (one[1:-1] for one in lists)
    return b"[%b]" % b",".join(one for one in inner if one.strip())
