import json
from typing import Any

import pytest

from router.conversation import Conversation, Message
from router.tokenizer import Tokenizer
from rpc.errors import FailedPrecondition, InvalidArgument
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
    token_ids = await tokenizer.encode_chat(conversation, max_bytes=max_bytes)
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
    tokenizer = Tokenizer.from_files(files, vocab_size=400, pool=POOL)
    text = "The capital of France is Paris. 東京"
    assert await tokenizer.encode(text, add_special_tokens=False) == ids_of(text)


async def test_chat_is_rendered_with_special_tokens_and_no_second_bos() -> None:
    tokenizer = make_tokenizer(chat_template="{{ bos_token }}<|im_start|>{{ messages[0].content }}")
    token_ids = await tokenizer.encode_chat(CLOSED, max_bytes=1000)
    assert token_ids == [token(BOS), token(IM_START), *ids_of("Be brief.")]


async def test_generation_prompt_opens_the_assistants_turn() -> None:
    tokenizer = make_tokenizer()
    closed = await tokenizer.encode_chat(CLOSED, max_bytes=1000)
    opened = await tokenizer.encode_chat(OPEN, max_bytes=1000)
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
        "{{ messages.append(1) }}",
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
    assert not tokenizer.has_chat_template
    with pytest.raises(FailedPrecondition):
        await tokenizer.encode_chat(OPEN, max_bytes=1000)


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": b"{"}, {"tokenizer.json": b"\xff"}])
def test_files_that_cannot_be_read_are_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=r"tokenizer"):
        Tokenizer.from_files(files, vocab_size=400, pool=POOL)


def test_a_tokens_text_alone_may_be_part_of_a_character() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.token_text(token("ĠParis")) == " Paris"
    assert tokenizer.token_text(token("Ã")) == "\ufffd"
