"""Leaves the oldest turns of a conversation out until its prompt fits."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.chat.length_errors import TextTooLong
from signalbox_router.prompt.tokenization.tokenizer import EncodedChat

Encode = Callable[[Conversation], Awaitable[EncodedChat]]


async def encode_latest_turns(
    conversation: Conversation, encode: Encode, *, max_tokens: int
) -> EncodedChat:
    """Returns the prompt of all turns that fit; that of the last turn is returned in any case.

    A turn begins with a message of the user and ends before the next such. System messages at the
    start stay. Each trial takes half of the turns that are left, so the work is bounded.

    Raises TextTooLong if the last turn alone is too long to be encoded.
    """
    starts = _turn_starts(conversation)
    kept, fewest, most = None, 0, max(0, len(starts) - 1)
    num_dropped = 0
    while True:
        try:
            chat = await encode(_without(conversation, starts, num_dropped))
            fits = len(chat.token_ids) <= max_tokens
            if fits or num_dropped == most:
                kept = chat
        except TextTooLong:
            if num_dropped == most:
                raise
            fits = False
        if fits:
            most = num_dropped
        else:
            fewest = num_dropped + 1
        if fewest >= most and kept is not None:
            return kept
        num_dropped = (fewest + most) // 2 if fewest < most else most


def _turn_starts(conversation: Conversation) -> list[int]:
    roles = ["", *(message.role for message in conversation.messages)]
    return [i for i, role in enumerate(roles[1:]) if role == "user" != roles[i]]


def _without(conversation: Conversation, starts: list[int], num_dropped: int) -> Conversation:
    if not num_dropped:
        return conversation
    messages = conversation.messages
    first = next(i for i, message in enumerate(messages) if message.role != "system")
    return replace(conversation, messages=[*messages[:first], *messages[starts[num_dropped] :]])
