"""Every tool format by its examples, however they are cut, and by calls drawn from its masks."""

import itertools
import json
import os
import random
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import Tokenizer as Backend

from signalbox_contract.structured_output.grammar import compile_grammar
from signalbox_router.parsers import tool_call_formats
from signalbox_router.parsers.parser_output import MARK, Parser
from signalbox_router.parsers.tool_call_format import AnswerFormat, ToolCallFormat
from signalbox_router.prompt.chat.conversation import MAX_NAME_CHARS
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary
from tests.router.fakes import EOS, make_backend
from tests.router.parsers.format_examples import NAMES, PARIS, TOOLS, TRIED, Calls, examples

NUM_DRAWN = int(os.environ.get("SIGNALBOX_TEST_DRAWN_CALLS", "40"))
"""Answers drawn of each format."""
MAX_DRAWN_TOKENS = 400
PIECES = (
    "<", "[", "]", "{", "}", '"', "'", ":", ",", ";", " ", "\n", "\\", "name", '{"name": "add", ',
    '"arguments": {', '"parameters": {"a": 1}}', "null", "None", "1", "Hé", "add", "\ud7ff", "(",
    ")",
)  # fmt: skip
CASES = [
    pytest.param(name, *example, id=f"{name}-{i}")
    for name in TRIED
    for i, example in enumerate(examples(name).all())
]


def read(parser: Parser, pieces: Iterable[str]) -> tuple[str, Calls]:
    """Returns the text and the calls; checks that each call is begun once, in order, and that no
    MARK is output."""
    parsed = [*map(parser.push, pieces), parser.flush()]
    calls: list[list[str]] = []
    for delta in (delta for one in parsed for delta in one.calls):
        if delta.id:
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        else:
            assert not delta.name
        calls[delta.index][1] += delta.arguments
    assert MARK not in repr(parsed)
    text = "".join(one.text for one in parsed)
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def make_parser(format_: ToolCallFormat, **options: Any) -> Parser:
    return format_.parser(TOOLS, **options)


def with_marks(format_: ToolCallFormat, text: str) -> str:
    """Returns a text as it comes from a model whose vocabulary has the markers."""
    markers = sorted(format_.markers, key=len, reverse=True)
    if not markers:
        return text
    return re.sub("|".join(map(re.escape, markers)), lambda found: MARK + found[0], text)


@pytest.mark.parametrize("name", TRIED)
def test_the_longest_name_of_a_tool_is_that_of_a_call(name: str) -> None:
    long, example = "n" * MAX_NAME_CHARS, examples(name)
    tools = [TOOLS[0]._replace(name=long), *TOOLS[1:]]
    parser = example.format_.parser(tools)
    assert read(parser, example.one.replace("get_weather", long)) == ("", [(long, PARIS)])


@pytest.mark.parametrize(("name", "text", "content", "calls", "reasoning"), CASES)
@pytest.mark.parametrize("is_token", [False, True])
def test_a_text_gives_its_calls_however_it_is_cut(
    name: str, text: str, content: str, calls: Calls, reasoning: str, is_token: bool
) -> None:
    format_ = examples(name).format_
    marked = frozenset(format_.markers) if is_token else frozenset()
    text = with_marks(format_, text) if is_token else text
    assert read(make_parser(format_, marked=marked), [text]) == (content, calls)
    assert read(make_parser(format_, marked=marked), text) == (content, calls)
    for cut in range(1, len(text)):
        pieces = [text[:cut], text[cut:]]
        assert read(make_parser(format_, marked=marked), pieces) == (content, calls)
    parser = make_parser(format_, marked=marked)
    assert "".join(parser.push(char).reasoning for char in text) == reasoning
    one = make_parser(format_, marked=marked, max_calls=1)
    assert read(one, [text]) == (content, calls[:1])


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str]:
    """Returns the name of a format, and a text of pieces of its examples and of others."""
    name = draw(st.sampled_from(TRIED))
    found = examples(name)
    own = re.findall(r"\w+|\s+|[^\w\s]+", found.two)
    pieces = [*PIECES, *own, *own, *(MARK + one for one in found.format_.markers), found.one]
    return name, "".join(draw(st.lists(st.sampled_from(pieces), max_size=24)))


@settings(max_examples=600, deadline=None)
@given(example=texts(), cuts=st.lists(st.integers(0, 200), max_size=8), is_token=st.booleans())
def test_any_text_gives_the_same_however_it_is_cut(
    example: tuple[str, str], cuts: list[int], is_token: bool
) -> None:
    name, text = example
    format_ = examples(name).format_
    options = {"marked": frozenset(format_.markers if is_token else ())}
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[begin:end] for begin, end in itertools.pairwise(ends)]
    left, calls = read(make_parser(format_, **options), [text])
    assert read(make_parser(format_, **options), pieces) == (left, calls)
    assert read(make_parser(format_, **options), text) == (left, calls)
    if not calls and not isinstance(format_, AnswerFormat):
        assert left == text.replace(MARK, "")  # what is no call is text, all of it
    assert all(isinstance(arguments, dict) for _, arguments in calls)


@pytest.mark.parametrize("name", TRIED)
def test_a_call_that_is_not_closed_is_whole_or_text(name: str) -> None:
    text, format_ = examples(name).one, examples(name).format_
    for end in range(len(text)):
        left, calls = read(make_parser(format_), [text[:end]])
        assert (left, calls) == (text[:end], []) or (left, calls) == ("", [
            ("get_weather", {"city": "Paris"})
        ])  # fmt: skip


WITH_MARKERS = [
    name
    for name in TRIED
    if any(one in examples(name).one for one in examples(name).format_.opening)
]


@pytest.mark.parametrize("name", WITH_MARKERS)
def test_a_marker_that_is_a_token_counts_as_its_token_alone(name: str) -> None:
    format_ = examples(name).format_
    text = f"They write {examples(name).one} there."
    assert read(make_parser(format_, marked=frozenset(format_.markers)), text) == (text, [])


@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
def test_calls_of_gemma_without_a_marker_are_of_offered_tools_that_are_not_strict(
    name: str,
) -> None:
    format_ = examples(name).format_
    opening, end, quote = format_.markers
    free = [tool._replace(strict=False) for tool in TOOLS]
    bare = f"call:get_weather{{city:{quote}Paris{quote}}}"
    text = f"I call: {bare} and call:find{{}}{opening}:call:now{{}}{end}"
    calls = [("get_weather", PARIS), ("now", {})]
    for pieces in ([text], text):
        found = read(format_.parser(free), pieces)
        assert found == ("I call:  and call:find{}", calls)
    assert read(make_parser(format_), [bare]) == (bare, [])


@cache
def tokenizer_of(name: str, *, has_markers: bool) -> tuple[Vocabulary, LLTokenizer]:
    """Returns a tokenizer of byte-level BPE, with a format's markers as special tokens or not."""
    return make_tokenizer(examples(name).format_.markers if has_markers else ())


def make_tokenizer(
    markers: Iterable[str], *, words: Iterable[str] = ()
) -> tuple[Vocabulary, LLTokenizer]:
    """Returns a tokenizer with special tokens, and with words that are one token each."""
    backend = Backend.from_str(make_backend().to_str())
    backend.add_special_tokens([*markers])
    backend.add_tokens([*words])
    size = backend.get_vocab_size()
    eos = backend.token_to_id(EOS)
    return Vocabulary(backend, vocab_size=size), LLTokenizer(backend.to_str(), eos_token=eos)


def of_calls(rules: str) -> tuple[str, ...]:
    """Returns the constraint of a text that is calls, of a format's rules."""
    return ("rules", f"start: calls\n{rules}")


def draw(
    matcher: Any, tokenizer: LLTokenizer, rng: random.Random, goals: Iterable[str]
) -> list[int] | None:
    """Returns tokens that the masks admit; None if they do not end in time.

    Args:
        goals: texts that are often gone on with, as they end what would not end by chance.
    """
    words, tokens = allocate_token_bitmask(1, tokenizer.vocab_size), list[int]()
    pieces = [tokenizer.decode_bytes([i]) for i in range(tokenizer.vocab_size)]
    bytewise = {piece: i for i, piece in enumerate(pieces)}
    closers = {i for i, piece in enumerate(pieces) if _closes(piece)}
    text = b""
    while len(tokens) < MAX_DRAWN_TOKENS:
        if matcher.is_accepting() and (matcher.is_stopped() or rng.random() < 0.3):
            return tokens
        fill_next_token_bitmask(matcher, words)
        bits = np.unpackbits(words[0].view(np.uint8), bitorder="little")[: len(pieces)]
        allowed = [i for i in np.flatnonzero(bits).tolist() if i != tokenizer.eos_token]
        if not allowed:
            break
        is_late = rng.random() < len(tokens) / MAX_DRAWN_TOKENS
        may_begin = is_late and rng.random() < 0.4
        wanted = [bytewise[byte] for byte in _next_bytes(text, goals, may_begin=may_begin)]
        wanted = [i for i in wanted if i in allowed and rng.random() < 0.9]
        closing = [i for i in allowed if i in closers]
        if rng.random() < 0.5:
            wanted = [i for i in allowed if tokenizer.is_special_token(i)] or wanted
        chosen = rng.choice(wanted or (closing if closing and is_late else allowed))
        tokens.append(chosen)
        text += pieces[chosen]
        assert matcher.consume_token(chosen), matcher.get_error()
    return tokens if matcher.is_accepting() else None


def _next_bytes(text: bytes, goals: Iterable[str], *, may_begin: bool) -> list[bytes]:
    """Returns the bytes that go on with the goals at the end of a text, longest first."""
    found = []
    for goal in map(str.encode, goals):
        lengths = [n for n in range(len(goal)) if text.endswith(goal[:n]) and (n or may_begin)]
        found += [(length, goal[length : length + 1]) for length in lengths[-1:]]
    return [byte for length, byte in found if length == max(found)[0]]


def _closes(piece: bytes) -> bool:
    return piece[:1] in b'"]}<>\xff/' or piece.strip() == b""


@pytest.mark.parametrize("has_markers", [False, True])
@pytest.mark.parametrize("name", TRIED)
def test_calls_drawn_from_the_masks_are_read_back(name: str, has_markers: bool) -> None:
    format_ = examples(name).format_
    vocabulary, tokenizer = tokenizer_of(name, has_markers=has_markers)
    rules = format_.grammar(TOOLS, vocabulary=vocabulary)
    matcher = compile_grammar(of_calls(rules), tokenizer)
    marked = frozenset(format_.markers) if has_markers else frozenset()
    schemas = {tool.name: tool.parameters or {"maxProperties": 0} for tool in TOOLS}
    rng = random.Random(name)
    tags = [*format_.markers, *re.findall(r"</[^<>]+>", examples(name).one)]
    goals = [before + tag for tag in dict.fromkeys(tags) for before in ("", "\n")]
    num_calls = num_cut = 0
    while num_calls < NUM_DRAWN:
        tokens = draw(matcher.deep_copy(), tokenizer, rng, goals)
        if tokens is None:
            num_cut += 1
            assert num_cut < NUM_DRAWN
            continue
        text = text_of(vocabulary, tokens, marked)
        left, calls = read(make_parser(format_, marked=marked, is_certain=True), [text])
        assert (left, read(make_parser(format_, marked=marked), text)) == ("", ("", calls)), text
        assert calls
        for tool, arguments in calls:
            jsonschema.validate(arguments, schemas[tool])
        num_calls += len(calls)
    single = format_.grammar(TOOLS, vocabulary=vocabulary, is_parallel=False)
    matcher = compile_grammar(of_calls(single), tokenizer)
    drawn = [draw(matcher.deep_copy(), tokenizer, rng, goals) for _ in range(8)]
    texts = [text_of(vocabulary, tokens, marked) for tokens in drawn if tokens is not None]
    assert {len(read(make_parser(format_, marked=marked), text)[1]) for text in texts} == {1}
    print(f"{name}: {num_calls} calls, and {num_cut} answers cut by length")


def text_of(vocabulary: Vocabulary, tokens: Iterable[int], marked: frozenset[str]) -> str:
    text = ""
    for is_special, group in itertools.groupby(tokens, vocabulary.special_tokens.__contains__):
        if is_special:
            text += "".join(MARK + vocabulary.special_tokens[token] for token in group)
        else:
            text += b"".join(map(vocabulary.token_bytes, group)).decode()
    return text


@pytest.mark.parametrize(
    ("name", "template"), [(name, one) for name in TRIED for one in examples(name).templates]
)
def test_the_template_tells_the_format(name: str, template: str) -> None:
    vocabulary, _ = tokenizer_of(name, has_markers=False)
    assert tool_call_formats.detect(template, vocabulary) is examples(name).format_


def test_every_format_has_examples_and_names_of_its_own() -> None:
    names = [name for one in tool_call_formats.OWN for name in (one.name, *one.aliases)]
    assert {one.name for one in tool_call_formats.OWN} == set(NAMES)
    assert len(names) == len(set(names))
    assert tool_call_formats.CHOICES[1:-1] == tuple(names)
