import asyncio
import json
import time
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import pytest

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_router.prompt.chat.conversation import Conversation, Message
from signalbox_router.prompt.tokenization.tokenizer import (
    LONG_DECODE_TOKENS,
    LONG_TEXT_CHARS,
    Tokenizer,
)
from tests.router.fakes import (
    BOS,
    IM_END,
    IM_START,
    POOL,
    ids_of,
    make_files,
    make_tokenizer,
    token,
)

TALK = [Message("system", "Be brief."), Message("user", "Capital of France?")]
OPEN = Conversation(messages=TALK)
CLOSED = Conversation(messages=TALK, add_generation_prompt=False)


async def chat_text(template: Any, messages: list[Message] = TALK, **options: Any) -> str:
    tokenizer = make_tokenizer(chat_template=template)
    max_bytes = options.pop("max_bytes", 10_000)
    conversation = Conversation(messages=messages, **options)
    token_ids = (await tokenizer.encode_chat(conversation, max_bytes=max_bytes)).token_ids
    return await tokenizer.decode(token_ids, skip_special_tokens=False)


async def test_special_tokens_are_added_when_asked_for() -> None:
    tokenizer = make_tokenizer()
    bare = await tokenizer.encode("Paris", add_special_tokens=False)
    assert await tokenizer.encode("Paris", add_special_tokens=True) == [token(BOS), *bare]


async def test_training_settings_of_the_file_do_not_cut_prompts() -> None:
    files = make_files()
    settings = json.loads(files["tokenizer.json"])
    settings["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    settings["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>",
    }  # fmt: skip
    files["tokenizer.json"] = json.dumps(settings).encode()
    tokenizer = Tokenizer(files, vocab_size=400, pool=POOL)
    text = "The capital of France is Paris. 東京"
    assert await tokenizer.encode(text, add_special_tokens=False) == ids_of(text)


async def test_chat_is_rendered_with_special_tokens_and_no_second_bos() -> None:
    tokenizer = make_tokenizer(chat_template="{{ bos_token }}<|im_start|>{{ messages[0].content }}")
    token_ids = (await tokenizer.encode_chat(CLOSED, max_bytes=1000)).token_ids
    assert token_ids == [token(BOS), token(IM_START), *ids_of("Be brief.")]


async def test_generation_prompt_opens_the_assistants_turn() -> None:
    tokenizer = make_tokenizer()
    closed = (await tokenizer.encode_chat(CLOSED, max_bytes=1000)).token_ids
    opened = (await tokenizer.encode_chat(OPEN, max_bytes=1000)).token_ids
    assert closed.count(token(IM_END)) == 2
    assert opened == [*closed, token(IM_START), *ids_of("assistant\n")]


async def test_what_templates_of_the_hub_use_is_there() -> None:
    template = (
        "{%- for m in messages %}\n  {%- if loop.first %}{% continue %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
        "{{ strftime_now('%Y')[:2] }}{{ tools is none }}{{ eos_token }}"
    )
    assert await chat_text(template) == (
        '{"role": "user", "content": "Capital of France?"}20True</s>'
    )


async def test_the_default_of_several_templates_is_used() -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert await chat_text(named) == "yes"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.add(1) }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(90000) %}xxxxxxxxxx{% endfor %}",
    ],
)
async def test_a_template_that_fails_is_the_conversations_fault(template: str) -> None:
    with pytest.raises(InvalidArgument, match="messages"):
        await chat_text(template)


async def test_a_templates_own_words_reach_the_client() -> None:
    with pytest.raises(InvalidArgument, match="roles must alternate"):
        await chat_text("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize("template", [None, "{% if %}"])
async def test_without_a_valid_template_there_is_no_chat(template: str | None) -> None:
    tokenizer = make_tokenizer(chat_template=template)
    assert tokenizer.chat_template is None
    with pytest.raises(FailedPrecondition):
        await tokenizer.encode_chat(OPEN, max_bytes=1000)


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": b"{"}, {"tokenizer.json": b"\xff"}])
def test_files_that_cannot_be_read_are_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=r"tokenizer"):
        Tokenizer(files, vocab_size=400, pool=POOL)


def test_a_tokens_text_alone_may_be_part_of_a_character() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.vocabulary.token_text(token("ĠParis")) == " Paris"
    assert tokenizer.vocabulary.token_text(token("Ã")) == "\ufffd"


async def longest_part_without_the_loop(work: Awaitable[object]) -> float:
    """Returns the longest time in which the event loop stood still, as a share of all the time.

    It is time on a processor, of all threads: that in which the machine runs others does not count.
    """
    task = asyncio.ensure_future(work)
    turns = [time.process_time()]
    while not task.done():
        await asyncio.sleep(0)
        turns.append(time.process_time())
    await task
    return max(after - before for before, after in pairwise(turns)) / (turns[-1] - turns[0])


async def test_the_event_loop_goes_on_while_a_long_text_is_tokenised() -> None:
    encoding = make_tokenizer().encode("a" * (1 << 20), add_special_tokens=False)
    assert await longest_part_without_the_loop(encoding) < 0.5


async def test_the_event_loop_goes_on_while_many_tokens_are_decoded() -> None:
    decoding = make_tokenizer().decode([token("Ġ")] * (1 << 20), skip_special_tokens=True)
    assert await longest_part_without_the_loop(decoding) < 0.5


LONG = "The capital of France is 東京 😀. " * (LONG_TEXT_CHARS // 16)


async def test_a_long_text_gets_the_same_tokens_in_another_process() -> None:
    tokenizer = make_tokenizer()
    assert len(LONG) > LONG_TEXT_CHARS
    for adds in (True, False):
        ids = await tokenizer.encode(LONG, add_special_tokens=adds)
        assert ids == tokenizer.encode_blocking(LONG, add_special_tokens=adds)
    assert await tokenizer.encode(LONG, add_special_tokens=True, last=7) == ids[-7:]
    many = ids * 2
    assert len(many) > LONG_DECODE_TOKENS
    assert await tokenizer.decode(many, skip_special_tokens=True) == LONG * 2
    tokenizer.close()


@pytest.mark.parametrize("last", [1, 5, 10**6])
async def test_a_long_text_gets_the_same_places_in_another_process(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer()
    there = await tokenizer.offsets(LONG, add_special_tokens=True, last=last)
    monkeypatch.setattr("signalbox_router.prompt.tokenization.tokenizer.LONG_TEXT_CHARS", len(LONG))
    assert there == await tokenizer.offsets(LONG, add_special_tokens=True, last=last)
    tokenizer.close()
