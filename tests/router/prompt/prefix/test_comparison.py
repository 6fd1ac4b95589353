"""What broke a prefix: the report names exactly the place that changed."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signalbox_contract.prefix_comparison import PrefixCause
from signalbox_router.prompt.chat.conversation import Conversation, Message, Tool, ToolCall
from signalbox_router.prompt.prefix.comparison import PrefixDifference, PromptRecord, compare
from signalbox_router.prompt.prefix.prompt_digest import (
    BLOCK_TOKENS,
    DigestKey,
    PromptDigest,
    digest_of,
)
from signalbox_router.prompt.prefix.prompt_records import OwnerRecords
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_router.requests.prefix_watch import PrefixWatch
from tests.router.fakes import ids_of, make_tokenizer

TEMPLATE = (
    "{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{{ note if note is defined else '' }}"
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if loop.first and tools -%}{{ tools | tojson }}{%- endif -%}"
    "{%- if m.reasoning_content is defined and loop.index0 > ns.last -%}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{%- endif -%}"
    "{{ m.content }}{%- for call in m.tool_calls or [] -%}"
    "{{ call.function.name }} {{ call.function.arguments | tojson }}{%- endfor -%}"
    "{{ '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
"""As Qwen3's: it has reasoning only behind the last message of the user."""
KEY = DigestKey(b"tenant", b"key")
SYSTEM = Message("system", "Be brief, be kind and be right, in this order. " * 3)
QUESTION = Message("user", "What is the capital of France? And of Germany? " * 3)
THOUGHT = "The user asks for two capitals; both of them are well known. " * 3
TEXT = "Paris is the capital of France, and Berlin that of Germany. " * 3
ARGUMENTS = {"city": "Paris", "days": ["monday", "tuesday", "wednesday"], "unit": "degrees"}
WORDS = st.lists(
    st.sampled_from(["Paris", "is", "the", "capital", "naïve", "café", "東京", ".", ","]),
    max_size=40,
)
TEXTS = WORDS.map(" ".join)


@functools.cache
def tokenizer() -> Tokenizer:
    return make_tokenizer(chat_template=TEMPLATE)


def tokens_of(conversation: Conversation) -> list[int]:
    text = tokenizer().render_chat(conversation, max_bytes=1 << 20)
    return tokenizer().encode_rendered(text, conversation)


def digest(conversation: Conversation, **changes: Any) -> PromptDigest:
    given: dict[str, Any] = {"model": ("m",)} | changes
    if "token_ids" not in given:
        given["token_ids"] = tokens_of(conversation)
    opening = "<|im_start|>assistant\n"
    return digest_of(conversation, opening=opening, key=KEY, **given)


def talk(*messages: Message, **options: Any) -> Conversation:
    return Conversation(messages=messages, **options)


def kept(conversation: Conversation, written: str, answer: Message) -> PromptRecord:
    """Returns the record of a request that was answered.

    Args:
        written: what the model wrote, of which `answer` is what the client got.
    """
    records, prompt = OwnerRecords(), digest(conversation)
    record = PromptRecord(prompt=prompt)
    watch = PrefixWatch(key=KEY, records=records, name="one", record=record, comparison=None)
    reasoning = len(ids_of(f"<think>{answer.reasoning}")) if answer.reasoning else 0
    token_ids, answered = tokens_of(conversation), ids_of(written)
    watch.keep(token_ids, answered, answer, num_reasoning_tokens=reasoning)
    found = records.find("one")
    assert found is not None and found.num_tokens == len(token_ids) + len(answered)
    return found


def compared(
    conversation: Conversation, record: PromptRecord, *, is_cut: bool = False, **changes: Any
) -> PrefixDifference:
    new = digest(conversation, **changes)
    return compare(new, record, conversation.messages, key=KEY, is_cut=is_cut)


@st.composite
def changed(draw: st.DrawFn) -> tuple[Conversation, Conversation, int]:
    """Draws two conversations that differ at one place, -1 of the tools, and perhaps in what the
    second one has behind the first."""
    texts = draw(st.lists(TEXTS, min_size=2, max_size=6))
    roles = ["system", *["user", "assistant"] * 3]
    first = [Message(role, text) for role, text in zip(roles, texts, strict=False)]
    place = draw(st.integers(-1, len(first) - 1))
    tools = [Tool("weather", draw(TEXTS)), Tool("clock", draw(TEXTS))]
    second, others = list(first), list(tools)
    if place < 0:
        others[1] = tools[1]._replace(description=_edited(draw, tools[1].description))
    else:
        second[place] = first[place]._replace(content=_edited(draw, first[place].parts[0]))
    second += draw(st.lists(TEXTS.map(lambda text: Message("user", text)), max_size=2))
    return talk(*first, tools=tools), talk(*second, tools=others), place


def _edited(draw: st.DrawFn, text: str) -> str:
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.sampled_from("xyz 京")) + text[at:]


@settings(max_examples=40, deadline=None)
@given(changed())
def test_a_change_at_one_place_is_named_with_the_tokens_from_there_on(
    drawn: tuple[Conversation, Conversation, int],
) -> None:
    earlier, later, place = drawn
    before, after = tokens_of(earlier), tokens_of(later)
    shared = min(len(before), len(after))
    pairs = enumerate(zip(before, after, strict=False))
    first = next((i for i, (one, other) in pairs if one != other), shared)
    record = PromptRecord(prompt=digest(earlier, token_ids=before))
    found = compared(later, record, token_ids=after)
    assert found.num_kept_tokens <= first < found.num_kept_tokens + BLOCK_TOKENS
    if found.cause is PrefixCause.UNCHANGED:  # a block that is not full is not cached
        assert first // BLOCK_TOKENS == shared // BLOCK_TOKENS
        return
    causes = {-1: PrefixCause.TOOLS_CHANGED, 0: PrefixCause.SYSTEM_CHANGED}
    assert found.cause is causes.get(place, PrefixCause.MESSAGE_CHANGED)
    assert found.message == (None if place < 0 else place)
    assert found.num_lost_tokens == shared - found.num_kept_tokens


THINKING = Message("assistant", TEXT, reasoning=THOUGHT)
CALLING = Message("assistant", "", tool_calls=[ToolCall("1", "weather", ARGUMENTS)])
AS_WRITTEN = f"<think>{THOUGHT}</think>{TEXT}<|im_end|>"
MORE = Message("user", "And what are those of Italy, of Spain, of Portugal and of Greece? " * 2)


@pytest.mark.parametrize(
    ("written", "answer", "sent", "cause"),
    [
        (TEXT, Message("assistant", TEXT), [Message("assistant", TEXT)], PrefixCause.UNCHANGED),
        (TEXT, Message("assistant", TEXT), [], PrefixCause.UNCHANGED),  # asked once more
        (TEXT, Message("assistant", TEXT), [MORE], PrefixCause.ANSWER_CHANGED),
        (
            TEXT,
            Message("assistant", TEXT),
            [Message("assistant", "Paris."), MORE],
            PrefixCause.ANSWER_CHANGED,
        ),
        ("\n\n" + TEXT, Message("assistant", TEXT), [Message("assistant", TEXT), MORE],
         PrefixCause.RENDERED_ANEW),
        (AS_WRITTEN, THINKING, [THINKING], PrefixCause.UNCHANGED),
        (AS_WRITTEN, THINKING, [THINKING, MORE], PrefixCause.REASONING_DROPPED),
        (
            AS_WRITTEN,
            THINKING,
            [THINKING._replace(reasoning=""), MORE],
            PrefixCause.REASONING_LEFT_OUT,
        ),
        (
            'weather {"city":"Paris","days":["monday","tuesday","wednesday"],"unit":"degrees"}',
            CALLING,
            [CALLING, Message("tool", "Rain.", tool_call_id="1")],
            PrefixCause.ARGUMENTS_RESPELLED,
        ),
    ],
)  # fmt: skip
def test_what_becomes_of_an_answer_has_a_name(
    written: str, answer: Message, sent: Sequence[Message], cause: PrefixCause
) -> None:
    record = kept(talk(SYSTEM, QUESTION), written, answer)
    found = compared(talk(SYSTEM, QUESTION, *sent), record)
    assert found.cause is cause
    if cause is PrefixCause.UNCHANGED:
        assert not found.num_lost_tokens
        return
    assert found.message == 2
    start = record.prompt.num_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    assert start - BLOCK_TOKENS <= found.num_kept_tokens and found.num_lost_tokens > 0


def test_reasoning_between_calls_is_dropped_when_the_user_speaks() -> None:
    step = CALLING._replace(reasoning=THOUGHT)
    result = Message("tool", "Rain on all days, and wind from the west. " * 5, tool_call_id="1")
    loop = (SYSTEM, QUESTION, step, result)
    record = kept(talk(*loop), TEXT, Message("assistant", TEXT))
    assert compared(talk(*loop, Message("assistant", TEXT)), record).cause is PrefixCause.UNCHANGED
    found = compared(talk(*loop, Message("assistant", TEXT), MORE), record)
    assert (found.cause, found.message) == (PrefixCause.REASONING_DROPPED, 2)


def test_arguments_in_another_order_are_the_same_values() -> None:
    again = dict(reversed(ARGUMENTS.items()))
    sent = CALLING._replace(tool_calls=[ToolCall("1", "weather", again)])
    record = kept(talk(SYSTEM, QUESTION, CALLING, QUESTION), TEXT, Message("assistant", TEXT))
    found = compared(talk(SYSTEM, QUESTION, sent, QUESTION), record)
    assert (found.cause, found.message) == (PrefixCause.ARGUMENTS_RESPELLED, 2)
    other = sent._replace(tool_calls=[ToolCall("1", "weather", again | {"city": "Rome"})])
    found = compared(talk(SYSTEM, QUESTION, other, QUESTION), record)
    assert (found.cause, found.message) == (PrefixCause.MESSAGE_CHANGED, 2)


def test_settings_and_models_are_told_from_messages() -> None:
    plain = talk(SYSTEM, QUESTION)
    record = PromptRecord(prompt=digest(plain))
    noted = replace(plain, template_kwargs={"note": "Today is Monday. "})
    assert compared(noted, record).cause is PrefixCause.SETTINGS_CHANGED
    unused = replace(plain, template_kwargs={"unused": True})
    assert compared(unused, record).cause is PrefixCause.UNCHANGED
    found = compared(plain, record, model=("m", "salt"))
    assert found == PrefixDifference(PrefixCause.MODEL_CHANGED, 0, record.num_tokens)


def test_turns_that_were_left_out_are_the_cause_where_they_may_be() -> None:
    record = PromptRecord(prompt=digest(talk(SYSTEM, QUESTION, Message("assistant", TEXT), MORE)))
    longer = talk(SYSTEM, QUESTION, Message("assistant", TEXT), MORE, QUESTION)
    cut = tokens_of(talk(SYSTEM, Message("assistant", TEXT), MORE, QUESTION))
    assert compared(longer, record, is_cut=True, token_ids=cut).cause is PrefixCause.TURNS_DROPPED
