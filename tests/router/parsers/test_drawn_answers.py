"""Whole answers drawn from the worker's masks, and read as the router reads them.

Tools, choices and reasoning are chosen at random. What is drawn prefers markers and the end of the
sequence, which lead to the states that a model reaches least.
"""

import json
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import sentinel

import jsonschema
import numpy as np
import pytest

from signalbox_router.params.structured_output_check import closed_form
from signalbox_router.parsers.answer_constraint import answer_constraint
from signalbox_router.parsers.reasoning_formats import THINK
from signalbox_router.parsers.reasoning_reader import Reasoning, reasoning_reader
from signalbox_router.parsers.tool_call_format import AnswerFormat, ToolCallFormat
from signalbox_router.parsers.tool_call_formats import named
from signalbox_router.parsers.tool_call_reader import reader_of
from signalbox_router.prompt.chat.conversation import (
    Conversation,
    Message,
    Thinking,
    Tool,
    ToolChoice,
    ToolMode,
)
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta, Finish, FinishReason
from signalbox_worker.sampling.compiled_grammar import Grammar
from tests.router.parsers.format_examples import NAMES
from tests.router.parsers.test_answer_constraint import BARE, grammar_of
from tests.router.parsers.test_formats import make_tokenizer

NUM_ANSWERS, MAX_TOKENS = 4, 400
SCHEMAS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string", "maxLength": 3},
    {"type": "string", "pattern": "^<[^>]*>$"},
    {"enum": ["a", "<", True, None]},
    {"type": "integer", "minimum": -1},
    {"type": ["string", "null"]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"const": "x"}]}}},
]


def some_request(rng: random.Random) -> Conversation:
    """Returns one with strict tools, of which some names begin others."""

    def parameters() -> dict[str, Any]:
        properties = {key: rng.choice(SCHEMAS) for key in rng.sample(["a", "name", "x_1"], 2)}
        required = [key for key in properties if rng.random() < 0.5]
        schema = {"type": "object", "properties": properties, "required": required}
        more = rng.choice([{}, {}, {"additionalProperties": {"type": "integer"}}])
        _, closed = closed_form(
            ("json_schema", json.dumps(schema | more)), disable_additional_properties=True
        )
        found: dict[str, Any] = json.loads(closed)
        return found

    names = rng.sample(["add", "add_more", "f-1", "functions"], 2)
    tools = [Tool(name, "", parameters(), strict=True) for name in names]
    mode = rng.choice([ToolMode.AUTO, ToolMode.REQUIRED])
    return Conversation(
        messages=[Message("user", "Hi")],
        tools=tools,
        tool_choice=ToolChoice(mode, allowed=rng.choice([(), (names[0],)])),
        parallel_tool_calls=rng.random() < 0.5,
        thinking=Thinking(budget=rng.choice([None, 0, 5])),
    )


def drawn(
    grammar: Grammar, num_tokens: int, rng: random.Random, liked: Sequence[int], ends: Sequence[int]
) -> list[int]:
    """Returns tokens that the masks admit; cut if they do not end in time."""
    tokens = list[int]()
    while len(tokens) < MAX_TOKENS and (not tokens or tokens[-1] not in ends):
        mask = grammar.mask(np.array(tokens, dtype=np.int32))
        bits = np.ones(num_tokens, dtype=np.uint8)
        if mask is not None:
            bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[:num_tokens]).tolist()
        assert allowed, tokens  # no dead end
        is_late = rng.random() < len(tokens) / MAX_TOKENS
        ending = [one for one in ends if one in allowed]
        others = [one for one in allowed if one not in ends]
        if ending and (is_late or rng.random() < 0.2 or not others):
            tokens.append(rng.choice(ending))
            continue
        preferred = [one for one in liked if one in others]
        likes = preferred and (is_late or rng.random() < 0.4)
        tokens.append(rng.choice(preferred if likes else others))
    return tokens


class Answer(SimpleNamespace):
    """What clients get of an answer."""

    text: str
    calls: list[list[str]]
    num_reasoning_tokens: int


def read(
    asked: Conversation,
    format_: ToolCallFormat,
    vocabulary: Vocabulary,
    reasoning: Reasoning | None,
    tokens: Sequence[int],
    num_together: int,
) -> Answer:
    of_model = SimpleNamespace(vocabulary=vocabulary, chat_template=None)
    model: Any = SimpleNamespace(tokenizer=of_model)
    calls_reader = reader_of(format_, asked, model)
    assert calls_reader is not None
    readers: list[Any] = [calls_reader]
    if reasoning is not None:
        openings = calls_reader.openings
        readers.insert(0, reasoning_reader(reasoning, model, openings=openings, is_last=False))
    kept = frozenset[int]().union(*(reader.kept_token_ids for reader in readers))
    detokenizer = vocabulary.make_detokenizer((), skip_special_tokens=True, kept_token_ids=kept)
    answer = Answer(text="", calls=[], num_reasoning_tokens=0)
    for first in range(0, len(tokens) + 1, num_together):
        ids = list(tokens[first : first + num_together])
        delta = Delta(index=0, text=detokenizer.push(tuple(ids)), token_ids=ids)
        if first + num_together > len(tokens):
            delta.text += detokenizer.flush()
            delta.finish = Finish(FinishReason.STOP)
        for reader in readers:
            reader.read(Update(sentinel.request, [delta], None))
        answer.text += delta.text
        for call in delta.tool_calls:
            if call.id:
                answer.calls.append([call.name, ""])
            answer.calls[-1][1] += call.arguments
    answer.num_reasoning_tokens = sum(reader.num_reasoning_tokens for reader in readers)
    return answer


def reasoned(
    tokens: Sequence[int], format_: ToolCallFormat, vocabulary: Vocabulary, *, is_open: bool
) -> int:
    """Returns how many tokens are reasoning."""
    is_answer = isinstance(format_, AnswerFormat)
    header, ends = (THINK.start,), {THINK.end, *format_.opening}
    if isinstance(format_, AnswerFormat):
        header, ends = format_.reasoning, set(format_.ends_of_reasoning)
    last, count, is_within = [""] * len(header), 0, is_open
    for position, token_id in enumerate(tokens):
        last = [*last[1:], vocabulary.entry(token_id)]
        if last[-1] in ends:
            is_within = is_open = False
        elif is_within:
            count += is_answer or last[-1] != THINK.start
        elif tuple(last) == header and (is_answer or position == 0):
            is_within = True
    return count


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_read_as_what_the_masks_held_it_to(name: str) -> None:
    rng, format_ = random.Random(name), named(name)
    is_answer = isinstance(format_, AnswerFormat)
    words = format_.reasoning if isinstance(format_, AnswerFormat) else ()
    vocabulary, tokenizer = make_tokenizer([*format_.markers, THINK.start, THINK.end], words=words)
    ends = [tokenizer.eos_token]
    if is_answer:
        ends += vocabulary.tokens_of(("<|call|>", "<|return|>")).values()
    special = set(vocabulary.special_tokens) - {tokenizer.eos_token}
    liked = [*special, *(tokenizer.tokenize_str(one)[0] for one in '"}]>,: \n')]
    for _ in range(NUM_ANSWERS):
        asked = some_request(rng)
        is_forced = asked.tool_choice.mode is ToolMode.REQUIRED
        is_open, budget = rng.random() < 0.5, asked.thinking.budget
        reasoning = None if is_answer else Reasoning(THINK, is_open, False, not is_open)
        found = answer_constraint(asked, vocabulary, reasoning, format_, is_constrained=False)
        grammar = grammar_of(found, tokenizer, *ends)
        tokens = drawn(grammar, tokenizer.vocab_size, rng, liked, ends)
        is_whole = tokens[-1] in ends
        tokens = tokens[: len(tokens) - (tokens[-1] == tokenizer.eos_token)]
        answer = read(asked, format_, vocabulary, reasoning, tokens, rng.randint(1, 4))
        told = f"{asked.tool_choice} {tokenizer.decode_bytes(tokens)!r} {answer}"
        num_reasoned = reasoned(
            tokens, format_, vocabulary, is_open=reasoning is not None and is_open
        )
        assert answer.num_reasoning_tokens == num_reasoned, told
        assert budget is None or num_reasoned <= budget, told
        assert asked.parallel_tool_calls or len(answer.calls) <= 1, told
        assert not (is_forced and is_whole) or (answer.calls and not answer.text.strip()), told
        if is_whole and (is_forced or name not in BARE):
            parameters = {tool.name: tool.parameters for tool in asked.callable_tools}
            for called, arguments in answer.calls:
                jsonschema.validate(json.loads(arguments), parameters[called] or {})
