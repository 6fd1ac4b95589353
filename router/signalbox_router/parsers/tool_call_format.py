"""The interface of tool formats: how a family of models writes tool calls into its text."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from signalbox_router.parsers.parser_output import Parser
from signalbox_router.prompt.chat.conversation import Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary


def make_id() -> str:
    """Returns an id of a call as OpenAI's API has them."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, kw_only=True)
class ToolCallFormat(ABC):
    """A format. A format of its own derives from this class, in a module of `formats`."""

    name: str
    """Value of --tool-call-parser; vLLM's, if that has the format."""
    aliases: tuple[str, ...] = ()
    """Further values of --tool-call-parser, such as vLLM's other names."""
    signs: tuple[tuple[str, ...], ...] = ()
    """Texts by which a chat template shows the format: all those of one entry."""
    opening: tuple[str, ...] = ()
    """Markers that open calls, anywhere in the text. None is the beginning of another."""
    is_generic: bool = False
    """True if the template of another format may have the same signs; that one is asked first."""
    make_id: Callable[[], str] = make_id
    """Makes the id of a call to which the model gives none."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be tokens of their own, and that the parser must see."""
        return self.opening

    def detects(self, template: str, vocabulary: Vocabulary) -> bool:
        """Returns whether a model with this chat template and this vocabulary has the format."""
        return any(all(text in template for text in texts) for texts in self.signs)

    @abstractmethod
    def parser(
        self,
        tools: Sequence[Tool],
        *,
        is_certain: bool = False,
        max_calls: int | None = None,
        marked: frozenset[str] = frozenset(),
    ) -> Parser:
        """Returns the parser of one sequence's text.

        Args:
            is_certain: True if a grammar guarantees well-formed calls; their arguments stream.
            max_calls: calls beyond are dropped.
            marked: markers that are tokens. In the text `parser_output.MARK` is before each; what
                spells one without is text.
        """

    @abstractmethod
    def grammar(
        self, tools: Sequence[Tool], *, is_parallel: bool = True, vocabulary: Vocabulary
    ) -> str:
        """Returns rules in Lark for `calls`: calls in this format, from the opening marker to the
        end of the last, with a marker as its token where the vocabulary has that. They begin calls
        by `call_rules.opening_rules`; strict calls are free under `auto` otherwise.

        The arguments of a strict tool conform to its schema; those of others are any that the
        format can write. `call_rules` has what formats share.

        Args:
            is_parallel: False allows one call.
        """


@dataclass(frozen=True, kw_only=True)
class AnswerFormat(ToolCallFormat):
    """A format whose markup is of all of an answer. Its parser reads answers without tools, too,
    and tells reasoning from text."""

    reasoning: tuple[str, ...]
    """Tokens that open reasoning."""
    ends_of_reasoning: tuple[str, ...]
    """Tokens that end it; the first of them where a budget is spent."""

    @abstractmethod
    def answer(self, vocabulary: Vocabulary, *, calls: str, text: str | None) -> str:
        """Returns, in Lark, what an answer is at its beginning and from each opening on: a header,
        after which the text is free, or all of a call or of an answer.

        Args:
            calls: the rule of calls, or "".
            text: the rule of the answer's text; "" if calls take its place, None if it is free.
        """
