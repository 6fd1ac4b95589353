"""The comparison of a prompt with an earlier one of the same client, which a router makes.

The scheduler of the request keeps it for `Explain`; explain.proto has the fields.
"""

import enum
from typing import NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_protos.scheduler.v1 import explain_pb2 as pb

_MAX_PATH_CHARS = 64


class PrefixCause(enum.Enum):
    """Cause for which an earlier prompt's tokens, and its answer's, are not reused."""

    UNCHANGED = 1
    NOT_FOUND = 2
    MODEL_CHANGED = 3
    TOOLS_CHANGED = 4
    SYSTEM_CHANGED = 5
    MESSAGE_CHANGED = 6
    ANSWER_CHANGED = 7
    REASONING_LEFT_OUT = 8
    SETTINGS_CHANGED = 9
    REASONING_DROPPED = 10
    ARGUMENTS_RESPELLED = 11
    TURNS_DROPPED = 12
    RENDERED_ANEW = 13
    EVICTED = 14
    OTHER_SCHEDULER = 15


class PrefixComparison(NamedTuple):
    """Tokens that a prompt shares with an earlier one, and the cause that ended them."""

    cause: PrefixCause
    num_kept_tokens: int = 0
    num_lost_tokens: int = 0
    path: str = ""
    is_elsewhere: bool = False
    """True if the earlier request went to another scheduler."""


def encode(comparison: PrefixComparison) -> pb.PrefixComparison:
    return pb.PrefixComparison(**comparison._asdict() | {"cause": comparison.cause.value})


def decode(message: pb.PrefixComparison) -> PrefixComparison:
    """Raises InvalidArgument for a message that no router of ours sends."""
    try:
        cause = PrefixCause(message.cause)
    except ValueError:
        raise InvalidArgument("prefix.cause", int(message.cause), "a PrefixCause") from None
    if len(message.path) > _MAX_PATH_CHARS:
        given = f"{len(message.path)} characters"
        raise InvalidArgument("prefix.path", given, f"at most {_MAX_PATH_CHARS}")
    return PrefixComparison(
        cause,
        message.num_kept_tokens,
        message.num_lost_tokens,
        message.path,
        message.is_elsewhere,
    )
