"""Oldest turns are left out of a conversation that does not fit, and no more than must be."""

import pytest

from signalbox_router.generation.turn_truncation import encode_latest_turns
from signalbox_router.prompt.chat.conversation import Conversation, Message
from signalbox_router.prompt.chat.length_errors import TextTooLong
from signalbox_router.prompt.tokenization.tokenizer import EncodedChat

TURN = [Message("user", "u"), Message("user", "v"), Message("assistant", "a"), Message("tool", "t")]
MOST = 30


async def encode(conversation: Conversation) -> EncodedChat:
    num_tokens = len(conversation.messages)
    if num_tokens > MOST:
        raise TextTooLong("messages", num_tokens, f"at most {MOST}")
    return EncodedChat([0] * num_tokens, conversation.messages[1].role, False)


@pytest.mark.parametrize("num_turns", [1, 2, 7, 8, 100])
@pytest.mark.parametrize("max_tokens", [2, 5, 6, 17, 29, 99])
async def test_as_many_turns_stay_as_fit(num_turns: int, max_tokens: int) -> None:
    conversation = Conversation(messages=[Message("system", "s"), *TURN * num_turns])
    chat = await encode_latest_turns(conversation, encode, max_tokens=max_tokens)
    num_kept = min(num_turns, max(1, (min(max_tokens, MOST) - 1) // len(TURN)))
    assert len(chat.token_ids) == 1 + num_kept * len(TURN)
    assert chat.opening == "user"


async def test_a_last_turn_that_cannot_be_encoded_is_refused() -> None:
    long = [
        Message("system", "s"),
        *TURN,
        Message("user", "u"),
        *[Message("assistant", "a")] * MOST,
    ]
    with pytest.raises(TextTooLong):
        await encode_latest_turns(Conversation(messages=long), encode, max_tokens=5)
