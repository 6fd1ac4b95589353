"""Puts system messages where a chat template takes them, and none to the front.

System messages at the start are one. A later one stays in its place, because the tokens before it
are the prefix that requests share. A template that refuses or moves it gets it as text of the user.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

from signalbox_router.prompt.chat.conversation import Conversation, Message
from signalbox_router.prompt.chat.template_facts import ContentForm

_TRIAL_ROLES = ("system", "user", "assistant", "system", "user")


class OrderTrial:
    """A conversation with a later system message, which shows where a template puts that."""

    def __init__(self) -> None:
        self._marks = [secrets.token_hex(8) for _ in _TRIAL_ROLES]

    def variables(self, form: ContentForm) -> Mapping[str, Any]:
        messages = [Message(*one) for one in zip(_TRIAL_ROLES, self._marks, strict=True)]
        return Conversation(messages=messages).variables(form)

    def is_in_order(self, text: str) -> bool:
        """Returns whether the rendered text has the messages in their order."""
        places = [text.find(mark) for mark in self._marks]
        return places[0] >= 0 and places == sorted(places)


def orders_of(
    conversation: Conversation, takes_later_system: Callable[[], bool]
) -> Iterator[Conversation]:
    """Yields the conversation in the forms to render in order; the first that the template accepts
    is used.

    Args:
        takes_later_system: returns whether the template renders such a message in its place.
    """
    start = next((i for i, one in enumerate(conversation.messages) if one.role != "system"), None)
    num_first = len(conversation.messages) if start is None else start
    first = _joined(conversation.messages[:num_first])
    rest = conversation.messages[num_first:]
    has_later = any(message.role == "system" for message in rest)
    if not has_later or takes_later_system():
        yield replace(conversation, messages=[*first, *rest])
    said = [one._replace(role="user") if one.role == "system" else one for one in rest]
    if has_later:
        yield replace(conversation, messages=[*first, *said])
    if any(one.role == other.role == "user" for one, other in pairwise(said)):
        merged = _joined(said, "user")  # for templates whose roles must alternate
        yield replace(conversation, messages=[*first, *merged])


def _joined(messages: Sequence[Message], role: str = "system") -> list[Message]:
    """Returns the messages with neighbours of the role as one message, part by part."""
    joined: list[Message] = []
    for is_joined, run in groupby(messages, key=lambda message: message.role == role):
        first, *others = run
        if is_joined and others:
            parts = tuple(part for one in (first, *others) for part in one.parts)
            first, others = first._replace(content=parts), []
        joined += (first, *others)
    return joined
