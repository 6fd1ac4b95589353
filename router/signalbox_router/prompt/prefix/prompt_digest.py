"""Keyed hashes of a prompt, by which a later prompt of the same owner is compared with it.

They are all that is kept: no text, and no token. An owner is a tenant and API key. The keys are
random, made anew by each router and unlike for each owner, so that equal prompts of two owners have
unlike hashes.
"""

import json
import secrets
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from signalbox_router.prompt.chat.conversation import Conversation, Message, ToolCall

BLOCK_TOKENS = 32
"""Tokens of a prompt that have one hash."""
HASH_BYTES = 8
_SYSTEM_ROLES = ("system", "developer")
_SECRET = secrets.token_bytes(32)


class DigestKey:
    """The key of one owner's hashes."""

    def __init__(self, *owner: bytes) -> None:
        self._key = _SECRET
        self._key = self._hash(b"".join(len(one).to_bytes(4) + one for one in owner), size=32)
        self.owner = self._key

    def texts(self, *texts: str) -> bytes:
        """Returns the hash of several texts."""
        content = "".join(f"{len(text)}:{text}" for text in texts)
        return self._hash(content.encode("utf-8", "surrogatepass"))

    def blocks(self, token_ids: Sequence[int]) -> bytes:
        """Returns the hashes of whole blocks of tokens; the rest has none."""
        tokens = array("I", token_ids)
        data, step = tokens.tobytes(), BLOCK_TOKENS * tokens.itemsize
        starts = range(0, len(data) - step + 1, step)
        return b"".join([self._hash(data[start : start + step]) for start in starts])

    def _hash(self, content: bytes, size: int = HASH_BYTES) -> bytes:
        return blake2b(content, key=self._key, digest_size=size).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDigest:
    """The hashes of one prompt."""

    model: bytes
    """A hash of model, adapter and cache salt: requests that share a prefix have it in common."""
    settings: bytes = b""
    """The template and what it is told beside messages and tools."""
    tools: bytes = b""
    messages: bytes = b""
    """A hash for each message as it is rendered."""
    values: bytes = b""
    """A hash for each message with the arguments of its calls by value, in any spelling."""
    num_system: int = 0
    """Messages of the system that come first."""
    last_query: int = -1
    """Index of the last message of the user; -1 if there is none."""
    blocks: bytes
    """A hash for each block of tokens."""
    num_tokens: int
    num_opening_tokens: int = 0
    """Tokens at the end that open the answer, at most."""

    @property
    def num_messages(self) -> int:
        return len(self.messages) // HASH_BYTES

    @property
    def num_bytes(self) -> int:
        return len(self.messages) + len(self.values) + len(self.blocks)


class AnswerDigest(NamedTuple):
    """The hashes of an answer, without white space: clients and templates trim it."""

    text: bytes
    calls: bytes
    """Names and arguments by value."""
    reasoning: bytes
    """Empty if there is none."""


def digest_of(
    conversation: Conversation | None,
    token_ids: Sequence[int],
    opening: str,
    *,
    model: Sequence[str],
    key: DigestKey,
) -> PromptDigest:
    """Returns the hashes of a prompt.

    Args:
        conversation: None for a prompt that is no conversation.
        opening: text at the prompt's end that begins the answer.
        model: names of what `PromptDigest.model` stands for.
    """
    shared: dict[str, Any] = {
        "model": key.texts(*model),
        "blocks": key.blocks(token_ids),
        "num_tokens": len(token_ids),
    }
    if conversation is None:
        return PromptDigest(**shared)
    messages = conversation.messages
    roles = [one.role for one in messages]
    pairs = [_message(one, key) for one in messages]
    others = (i for i, role in enumerate(roles) if role not in _SYSTEM_ROLES)
    settings = (
        conversation.chat_template,
        conversation.template_kwargs,
        conversation.thinking,
        conversation.parse_special_tokens,
    )
    return PromptDigest(
        **shared,
        settings=key.texts(*map(_json, settings)),
        tools=key.texts(*(_json(tool.variables()) for tool in conversation.offered_tools)),
        messages=b"".join(exact for exact, _ in pairs),
        values=b"".join(value for _, value in pairs),
        num_system=next(others, len(roles)),
        last_query=max((i for i, role in enumerate(roles) if role == "user"), default=-1),
        num_opening_tokens=len(opening) // 3 + 1 if opening else 0,
    )


def answer_digest(message: Message, key: DigestKey) -> AnswerDigest:
    calls = [text for call in message.tool_calls for text in (call.name, _spelled(call, True))]
    reasoning = _without_space(message.reasoning)
    return AnswerDigest(
        text=key.texts(_without_space("".join(message.parts))),
        calls=key.texts(*calls) if calls else b"",
        reasoning=key.texts(reasoning) if reasoning else b"",
    )


def num_common(some: bytes, others: bytes) -> int:
    """Returns how many hashes two lists begin with in common."""
    low, high = 0, min(len(some), len(others)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if some.startswith(others[: middle * HASH_BYTES]):
            low = middle
        else:
            high = middle - 1
    return low


def _message(message: Message, key: DigestKey) -> tuple[bytes, bytes]:
    """Returns the hash of a message as it is rendered, and with its arguments by value."""
    texts = (
        message.role,
        "\n".join(message.parts),
        message.tool_call_id,
        message.name,
        message.reasoning,
    )
    if not message.tool_calls:
        exact = key.texts(*texts)
        return exact, exact
    exact, value = (
        key.texts(*texts, *_calls(message.tool_calls, by_value=one)) for one in (False, True)
    )
    return exact, value


def _calls(calls: Sequence[ToolCall], *, by_value: bool) -> Iterator[str]:
    for call in calls:
        yield from (call.id, call.name, _spelled(call, by_value))


def _spelled(call: ToolCall, by_value: bool) -> str:
    return _json(call.arguments, sort_keys=by_value)


def _json(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, default=repr, sort_keys=sort_keys)


def _without_space(text: str) -> str:
    return "".join(text.split())
