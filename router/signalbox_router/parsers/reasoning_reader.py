"""Separates a model's reasoning from text that arrives in pieces of any size.

Reasoning is the text between two markers at the beginning of an answer; if the prompt ends behind
the first marker and before the second, the answer begins inside. White space around reasoning and
answer is dropped.
"""

from collections.abc import Callable
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
        self, format_: ReasoningFormat, *, begins_within: bool, is_continued: bool = False
    ) -> None:
        """Makes a parser; `is_continued` if the prompt has the beginning of the reasoning."""
        self._format = format_
        self._held = ""
        self._is_at_start = not is_continued
        self._has_marker = False
        self._is_within = begins_within
        self._wants_text = False
        """True while white space before the answer is dropped."""

    def push(self, text: str) -> Split:
        if not (self._is_at_start or self._is_within or self._wants_text):
            return Split("", text)
        self._held += text
        if self._is_at_start and not self._read_start():
            return Split("", "")
        reasoning = self._read_reasoning() if self._is_within else ""
        return Split(reasoning, "" if self._is_within else self._read_text())

    def flush(self) -> Split:
        """Returns the held text, at the end of the answer."""
        held, self._held = self._held, ""
        if self._is_at_start and not self._is_within:
            return Split("", held)
        return Split(held.rstrip() if self._is_within else "", "")

    def _read_start(self) -> bool:
        """Removes a start marker; returns whether it is decided that there is one or none."""
        text, start = self._held.lstrip(), self._format.start
        if not self._has_marker:
            if text.startswith(start):
                self._has_marker = self._is_within = True
                text = text[len(start) :].lstrip()
            elif start.startswith(text) and len(self._held) <= MAX_HELD_SPACE:
                return False
        if self._is_within:
            self._held = text
        self._is_at_start = self._is_within and not text  # the marker's trailing space may continue
        return not self._is_at_start

    def _read_reasoning(self) -> str:
        text, end = self._held, self._format.end
        position = text.find(end)
        if position >= 0:
            self._is_within, self._wants_text = False, True
            self._held = text[position + len(end) :]
            return text[:position].rstrip()
        longest = min(len(end) - 1, len(text))
        num_matched = next((n for n in range(longest, 0, -1) if text.endswith(end[:n])), 0)
        before = text[: len(text) - num_matched]
        reasoning = before.rstrip()
        if len(before) - len(reasoning) > MAX_HELD_SPACE:
            reasoning = before
        self._held = text[len(reasoning) :]
        return reasoning

    def _read_text(self) -> str:
        text, self._held = self._held, ""
        if self._wants_text:
            text = text.lstrip()
            self._wants_text = not text
        return text


class ReasoningReader:
    """Rewrites each update of a request in place: moves reasoning out of the text."""

    def __init__(
        self, make_parser: Callable[[], ReasoningParser], *, kept_token_ids: frozenset[int]
    ) -> None:
        self.kept_token_ids = kept_token_ids
        """Special tokens that the text must show for the markers to be found."""
        self._make_parser = make_parser
        self._parsers: dict[int, ReasoningParser] = {}

    def read(self, update: Update) -> None:
        for delta in update.deltas:
            parser = self._parsers.get(delta.index)
            if parser is None:
                parser = self._parsers[delta.index] = self._make_parser()
            delta.reasoning, delta.text = parser.push(delta.text)
            if delta.finish is not None:
                reasoning, text = parser.flush()
                delta.reasoning += reasoning
                delta.text += text


def reasoning_reader(
    conversation: Conversation, model: ServedModel, opening: str, *, setting: str
) -> ReasoningReader | None:
    """Returns the reader of the answer's reasoning; None leaves the text unchanged.

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
    make_parser = partial(
        ReasoningParser,
        format_,
        begins_within=is_open or (format_.begins_within and may_begin),
        is_continued=is_open and bool(reasoning.strip()),
    )
    markers = model.tokenizer.vocabulary.ids_of((format_.start, format_.end))
    return ReasoningReader(make_parser, kept_token_ids=frozenset(markers))


def _detect(template: str, model: ServedModel) -> ReasoningFormat | None:
    for format_ in (THINK, FORMATS["mistral"], FORMATS["seed_oss"]):
        if format_.end in template or model.tokenizer.vocabulary.token_id(format_.end) is not None:
            return format_
    return None
