"""Finds the part of a sequence that its structured output applies to; the text around it is free.

Everything follows from the sequence's tokens: reasoning ends with a token, and a call begins with
one. The same token spelled out in others is text.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from signalbox_protos.common.v1 import common_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The parts of a sequence to which its constraint applies; by default all of it."""

    is_open: bool = False
    """True if the sequence begins within reasoning."""
    opening_token_ids: tuple[int, ...] = ()
    """Reasoning begins with one of these tokens if the sequence does."""
    closing_token_ids: tuple[int, ...] = ()
    """Tokens that end reasoning."""
    max_reasoning_tokens: int | None = None
    """Tokens of reasoning after which the first of `closing_token_ids` is drawn, and no more
    reasoning begins."""
    reasoning_token_ids: tuple[int, ...] = ()
    """Reasoning begins where a part that conforms ends with these tokens, if there are any."""
    marker_token_ids: tuple[int, ...] = ()
    """Tokens with which the constraint begins in free text, reasoning included; it describes them,
    too."""
    is_repeated: bool = False
    """True if free text follows each text that conforms, so that the constraint may begin again."""
    is_leading: bool = True
    """True if the sequence begins with the constraint, or with reasoning that the constraint
    follows."""
    is_required: bool = True
    """True if the sequence may not end within reasoning or other free text. Where there are
    `reasoning_token_ids`, it may, once a part has conformed that opens no reasoning."""

    @property
    def token_ids(self) -> Iterator[int]:
        yield from self.opening_token_ids
        yield from self.closing_token_ids
        yield from self.reasoning_token_ids
        yield from self.marker_token_ids


WHOLE = Scope()


def decode(message: pb.ConstraintScope) -> Scope:
    most = message.max_reasoning_tokens if message.HasField("max_reasoning_tokens") else None
    return Scope(
        is_open=message.is_open,
        opening_token_ids=tuple(message.opening_token_ids),
        closing_token_ids=tuple(message.closing_token_ids),
        max_reasoning_tokens=most,
        reasoning_token_ids=tuple(message.reasoning_token_ids),
        marker_token_ids=tuple(message.marker_token_ids),
        is_repeated=message.is_repeated,
        is_leading=message.is_leading,
        is_required=message.is_required,
    )


def encode(scope: Scope) -> pb.ConstraintScope:
    return pb.ConstraintScope(
        is_open=scope.is_open,
        opening_token_ids=scope.opening_token_ids,
        closing_token_ids=scope.closing_token_ids,
        max_reasoning_tokens=scope.max_reasoning_tokens,
        reasoning_token_ids=scope.reasoning_token_ids,
        marker_token_ids=scope.marker_token_ids,
        is_repeated=scope.is_repeated,
        is_leading=scope.is_leading,
        is_required=scope.is_required,
    )
