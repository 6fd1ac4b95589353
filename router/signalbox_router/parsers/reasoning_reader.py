"""Separates a model's reasoning from text that arrives in pieces of any size.

Reasoning is the text between two markers at the beginning of an answer; if the prompt ends behind
the first marker and before the second, the answer begins inside. A call ends reasoning, too. White
space around reasoning and answer is dropped.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from signalbox_router.parsers.reasoning_formats import (
    AUTO,
    FORMATS,
    NONE,
    THINK,
    ReasoningFormat,
)
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.detokenizer import MARK
from signalbox_router.requests.active_request import Update

MAX_HELD_SPACE = 4096
"""Characters of white space that are held back until more text follows. More are output at once,
because rescanning all of them with each piece would take quadratic time."""


class Split(NamedTuple):
    """A piece of output, split into reasoning and text."""

    reasoning: str
    text: str


class ReasoningParser:
    """Parses the answer of one sequence."""

    def __init__(
        self,
        start: str,
        end: str,
        *,
        begins_within: bool,
        is_continued: bool = False,
        calls: Sequence[str] = (),
    ) -> None:
        """Makes a parser.

        Args:
            start, end: the markers as they are in the text: with a MARK if they are tokens.
            is_continued: True if the prompt has the beginning of the reasoning.
            calls: markers that open calls, as they are in the text; they end reasoning, too, and
                its own end is dropped then.
        """
        self._start = start
        self._ends = (end, *calls)
        self._held = ""
        self._is_at_start = not is_continued
        self._has_marker = False
        self.is_within = begins_within
        """True while the text that follows is reasoning."""
        self._wants_text = False
        """True while white space before the answer is dropped."""
        self._is_cut = False
        """True if a call has ended the reasoning."""

    def push(self, text: str) -> Split:
        if not (self._is_at_start or self.is_within or self._wants_text):
            return Split("", self._without_end(text))
        self._held += text
        if self._is_at_start and not self._read_start():
            return Split("", "")
        reasoning = self._read_reasoning() if self.is_within else ""
        return Split(reasoning, "" if self.is_within else self._without_end(self._read_text()))

    def flush(self) -> Split:
        """Returns the held text, at the end of the answer."""
        held, self._held = self._held, ""
        if self._is_at_start and not self.is_within:
            return Split("", held)
        return Split(_unmarked(held.rstrip()) if self.is_within else "", "")

    def _read_start(self) -> bool:
        """Removes a start marker; returns whether it is decided that there is one or none."""
        text, start = self._held.lstrip(), self._start
        if not self._has_marker:
            if text.startswith(start):
                self._has_marker = self.is_within = True
                text = text[len(start) :].lstrip()
            elif start.startswith(text) and len(self._held) <= MAX_HELD_SPACE:
                return False
        if self.is_within:
            self._held = text
        self._is_at_start = self.is_within and not text  # the marker's trailing space may continue
        return not self._is_at_start

    def _read_reasoning(self) -> str:
        text = self._held
        found = [(at, one) for one in self._ends if (at := text.find(one)) >= 0]
        if found:
            position, end = min(found)
            self.is_within, self._wants_text = False, True
            self._is_cut = end != self._ends[0]
            self._held = text[position + len(end) * (not self._is_cut) :]
            return _unmarked(text[:position].rstrip())
        before = text[: len(text) - max(_num_begun(one, text) for one in self._ends)]
        reasoning = before.rstrip()
        if len(before) - len(reasoning) > MAX_HELD_SPACE:
            reasoning = before
        self._held = text[len(reasoning) :]
        return _unmarked(reasoning)

    def _without_end(self, text: str) -> str:
        return text.replace(self._ends[0], "") if self._is_cut else text

    def _read_text(self) -> str:
        text, self._held = self._held, ""
        if self._wants_text:
            text = text.lstrip()
            self._wants_text = not text
        return text


def _num_begun(marker: str, text: str) -> int:
    """Returns how many characters at the end of a text begin a marker."""
    longest = min(len(marker) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)


def _unmarked(text: str) -> str:
    return text.replace(MARK, "") if MARK in text else text


class ReasoningReader:
    """Rewrites each update of a request in place: moves reasoning out of the text."""

    def __init__(
        self,
        make_parser: Callable[[], ReasoningParser],
        *,
        kept_token_ids: frozenset[int],
        opening_token_id: int | None = None,
        is_last: bool = True,
    ) -> None:
        """Makes a reader; another one that looks for marked tokens follows unless `is_last`."""
        self.kept_token_ids = kept_token_ids
        """Tokens that the text must show, and mark, for the markers to be found."""
        self.num_reasoning_tokens = 0
        """Tokens of the reasoning so far, in all sequences, without its markers."""
        self.num_calls = 0
        """Reasoning has no calls."""
        self._make_parser = make_parser
        self._opening_token_id = opening_token_id
        self._is_last = is_last
        self._parsers: dict[int, ReasoningParser] = {}

    def read(self, update: Update) -> None:
        for delta in update.deltas:
            parser = self._parsers.get(delta.index)
            if parser is None:
                parser = self._parsers[delta.index] = self._make_parser()
            was_within = parser.is_within
            delta.reasoning, delta.text = parser.push(delta.text)
            if was_within or parser.is_within or delta.reasoning:
                self._count(delta.token_ids, ends=not parser.is_within)
            if delta.finish is not None:
                reasoning, text = parser.flush()
                delta.reasoning += reasoning
                delta.text += text
            if self._is_last:
                delta.text = _unmarked(delta.text)

    def _count(self, token_ids: Sequence[int], *, ends: bool) -> None:
        """Counts tokens of reasoning; up to its marker where it ends among them."""
        for token_id in token_ids:
            if token_id not in self.kept_token_ids:
                self.num_reasoning_tokens += 1
            elif ends and token_id != self._opening_token_id:
                break


class Reasoning(NamedTuple):
    """The place of an answer's reasoning, as far as its prompt tells."""

    format_: ReasoningFormat
    is_open: bool
    """True if the answer begins within reasoning."""
    is_continued: bool
    """True if the prompt has the beginning of the reasoning."""
    may_begin: bool
    """True if the prompt neither has opened reasoning nor excludes it."""


def reasoning_of(
    conversation: Conversation, model: ServedModel, opening: str, *, setting: str
) -> Reasoning | None:
    """Returns where an answer's reasoning is; None if it is not told from the text.

    Args:
        opening: text at the prompt's end that begins the answer.
        setting: one of `reasoning_formats.CHOICES`; AUTO decides by the chat template, then by the
            model's tokens.
    """
    template = model.tokenizer.chat_template
    source = conversation.chat_template or (template.source if template else "")
    if setting == NONE:
        return None
    format_ = FORMATS[setting] if setting != AUTO else _detect(source, model)
    if format_ is None:
        return None
    _, marker, reasoning = opening.rpartition(format_.start)
    is_open = bool(marker) and format_.end not in reasoning
    may_begin = conversation.add_generation_prompt and format_.end not in opening
    return Reasoning(
        format_,
        is_open=is_open or (format_.begins_within and may_begin),
        is_continued=is_open and bool(reasoning.removeprefix(format_.head).strip()),
        may_begin=may_begin and not is_open,
    )


def reasoning_reader(
    reasoning: Reasoning, model: ServedModel, *, openings: Sequence[str] = (), is_last: bool
) -> ReasoningReader:
    """Returns the reader of an answer's reasoning.

    Args:
        openings: markers of calls. Those that are tokens end reasoning; it may mention others.
        is_last: False if a reader of calls follows.
    """
    format_ = reasoning.format_
    tokens = model.tokenizer.vocabulary.tokens_of((format_.start, format_.end, *openings))
    start, end = (MARK + one if one in tokens else one for one in (format_.start, format_.end))
    make_parser = partial(
        ReasoningParser,
        start + format_.head,
        end,
        begins_within=reasoning.is_open,
        is_continued=reasoning.is_continued,
        calls=[MARK + one for one in openings if one in tokens],
    )
    return ReasoningReader(
        make_parser,
        kept_token_ids=frozenset(tokens.values()),
        opening_token_id=tokens.get(format_.start),
        is_last=is_last,
    )


def _detect(template: str, model: ServedModel) -> ReasoningFormat | None:
    others = ("mistral", "seed_oss", "cohere_command3", "gemma4")
    for format_ in (THINK, *map(FORMATS.__getitem__, others)):
        if format_.end in template or model.tokenizer.vocabulary.token_id(format_.end) is not None:
            return format_
    return None
