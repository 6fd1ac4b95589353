"""Positions that the router names: prompts that go on have as many tokens in common."""

from dataclasses import replace
from itertools import takewhile

import pytest

from signalbox_router.prompt.chat.conversation import Conversation, Message, Tool
from signalbox_router.prompt.tokenization.tokenizer import EncodedChat, Tokenizer
from tests.router.fakes import make_tokenizer

SYSTEM, USER = Message("system", "Be brief. " * 20), Message("user", " Capital of France? ")
TOOLS = (Tool("france", "Says France."), Tool("capital"))
WITH_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% if loop.first and tools %}\n{{ tools | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


async def encoded(tokenizer: Tokenizer, *messages: Message, **options: object) -> EncodedChat:
    asked = replace(Conversation(messages=messages), **options)  # type: ignore[arg-type]
    return await tokenizer.encode_chat(asked, max_bytes=1 << 20, names_positions=True)


def num_common(one: EncodedChat, other: EncodedChat) -> int:
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


@pytest.mark.parametrize("tools", [(), TOOLS])
async def test_the_ends_of_the_system_text_and_of_the_conversation_are_named(
    tools: tuple[Tool, ...],
) -> None:
    tokenizer = make_tokenizer(chat_template=WITH_TOOLS)
    chat = await encoded(tokenizer, SYSTEM, USER, tools=tools)
    other = await encoded(tokenizer, SYSTEM, Message("user", "Xyz"), tools=tools)
    closed = await encoded(tokenizer, SYSTEM, USER, tools=tools, add_generation_prompt=False)
    head, tail = chat.snapshot_positions
    assert head == num_common(chat, other)
    end = len(closed.token_ids)
    assert end - 2 <= tail <= end == num_common(chat, closed)  # <|im_end|> and a line's end
    assert closed.snapshot_positions == (head, end)


async def test_texts_that_prompts_share_are_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer(chat_template=WITH_TOOLS)
    first = await encoded(tokenizer, SYSTEM, USER)
    asked: list[str] = []
    encode = tokenizer.encode_written

    async def counted(text: str, **options: object) -> list[int]:
        asked.append(text)
        return await encode(text, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tokenizer, "encode_written", counted)
    later = await encoded(tokenizer, SYSTEM, USER, Message("assistant", "Paris"), USER)
    assert later.snapshot_positions[0] == first.snapshot_positions[0]
    assert len(asked) == 1


async def test_none_are_named_unasked_or_for_a_part_of_a_prompt() -> None:
    tokenizer = make_tokenizer(chat_template=WITH_TOOLS)
    asked = Conversation(messages=[SYSTEM, USER])
    assert not (await tokenizer.encode_chat(asked, max_bytes=1000)).snapshot_positions
    cut = await tokenizer.encode_chat(asked, max_bytes=1000, last=9, names_positions=True)
    assert not cut.snapshot_positions
    assert len(cut.token_ids) == 9


async def test_a_first_message_that_the_template_changes_has_no_place() -> None:
    changed = "{{ messages[0].content }}{{ messages[1].content | upper }}<|im_end|>"
    chat = await encoded(make_tokenizer(chat_template=changed), SYSTEM, USER)
    assert chat.snapshot_positions == (len(chat.token_ids) - 1,)
