"""Parses the tool calls in the updates of a request's sequences."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from signalbox_router.parsers import tool_call_formats
from signalbox_router.parsers.parser_output import Parsed, Parser
from signalbox_router.parsers.tool_call_format import AnswerFormat, ToolCallFormat
from signalbox_router.parsers.tool_call_formats import HERMES, JSON, named
from signalbox_router.prompt.chat.conversation import Conversation, ToolMode
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import FinishReason, ToolCallDelta

_ENDS_WITH_CALLS = (FinishReason.STOP, FinishReason.STOP_TOKEN)


class ForcedCallParser:
    """Parses a forced tool call: the model's whole text is its arguments."""

    def __init__(self, name: str, *, make_id: Callable[[], str]) -> None:
        self.num_calls = 0
        self._name = name
        self._make_id = make_id

    def push(self, text: str) -> Parsed:
        if self.num_calls:
            return Parsed("", [ToolCallDelta(index=0, arguments=text)] if text else [])
        self.num_calls = 1
        call = ToolCallDelta(index=0, id=self._make_id(), name=self._name, arguments=text)
        return Parsed("", [call])

    def flush(self) -> Parsed:
        return Parsed("", [])


class ReasoningCounter:
    """Counts the tokens of one sequence's reasoning that a header of certain tokens opens."""

    def __init__(self, header: Sequence[int], ends: frozenset[int]) -> None:
        self._header = deque(header)
        self._last = deque[int](maxlen=len(header))
        self._ends = ends
        self._is_within = False

    def count(self, token_ids: Iterable[int]) -> int:
        """Reads more tokens; returns how many of them are reasoning."""
        num_tokens = 0
        for token_id in token_ids:
            self._last.append(token_id)
            if token_id in self._ends:
                self._is_within = False
            elif self._is_within:
                num_tokens += 1
            else:
                self._is_within = self._last == self._header
        return num_tokens


class ToolCallReader:
    """Rewrites each update in place: moves calls out of the text."""

    def __init__(
        self,
        make_parser: Callable[[], Parser],
        *,
        openings: Sequence[str] = (),
        kept_token_ids: frozenset[int] = frozenset(),
        make_counter: Callable[[], ReasoningCounter] | None = None,
    ) -> None:
        self.openings = openings
        """Markers that open calls."""
        self.kept_token_ids = kept_token_ids
        """Tokens that the text must show, and mark, for calls to be found."""
        self.num_reasoning_tokens = 0
        """Tokens of reasoning, in formats whose markup of calls and of reasoning is one."""
        self._make_parser = make_parser
        self._make_counter = make_counter
        self._parsers: dict[int, Parser] = {}
        self._counters: dict[int, ReasoningCounter] = {}

    @property
    def num_calls(self) -> int:
        """Calls found so far, in all sequences."""
        return sum(parser.num_calls for parser in self._parsers.values())

    def read(self, update: Update) -> None:
        for delta in update.deltas:
            parser = self._parsers.get(delta.index)
            if parser is None:
                parser = self._parsers[delta.index] = self._make_parser()
                if self._make_counter is not None:
                    self._counters[delta.index] = self._make_counter()
            if (counter := self._counters.get(delta.index)) is not None:
                self.num_reasoning_tokens += counter.count(delta.token_ids)
            delta.text, delta.tool_calls, reasoning = parser.push(delta.text)
            delta.reasoning += reasoning
            if reasoning and counter is None:
                self.num_reasoning_tokens += len(delta.token_ids)
            if delta.finish is None:
                continue
            text, calls, reasoning = parser.flush()
            for call in calls:
                call.offset += len(delta.text)
            delta.text += text
            delta.tool_calls += calls
            delta.reasoning += reasoning
            if parser.num_calls and delta.finish.reason in _ENDS_WITH_CALLS:
                delta.finish = delta.finish._replace(reason=FinishReason.TOOL_CALLS)


def reader_of(
    format_: ToolCallFormat | None, conversation: Conversation, model: ServedModel
) -> ToolCallReader | None:
    """Returns the reader of the answer's calls; None if the answer may have none.

    Args:
        format_: that of the answer, see `format_of_answer`.
    """
    choice = conversation.tool_choice
    is_forced = choice.mode is ToolMode.REQUIRED
    if format_ is not None:
        return _reader(format_, conversation, model, is_certain=is_forced)
    if choice.tool:
        make_parser = partial(ForcedCallParser, choice.tool, make_id=named(JSON).make_id)
        return ToolCallReader(make_parser)
    return _reader(named(JSON), conversation, model, is_certain=True) if is_forced else None


def format_of(
    conversation: Conversation, model: ServedModel, *, setting: str, takes_tools: bool
) -> ToolCallFormat | None:
    """Returns the format of the calls that the model may write; None if parsing is off.

    Args:
        setting: one of `tool_call_formats.CHOICES`.
        takes_tools: True if the conversation's template renders tools.
    """
    source = _template(conversation, model)
    # Otherwise tool_prompt has described the tools, in Hermes' format.
    name = setting if takes_tools or setting == tool_call_formats.NONE else HERMES
    return tool_call_formats.choose(name, source, model.tokenizer.vocabulary)


def _template(conversation: Conversation, model: ServedModel) -> str:
    template = model.tokenizer.chat_template
    return conversation.chat_template or (template.source if template else "")


def format_of_answer(
    conversation: Conversation, model: ServedModel, *, setting: str, takes_tools: bool
) -> ToolCallFormat | None:
    """Returns the format of what the answer may have beside text, see `format_of`; None if there is
    none, or for a forced call of a model whose template renders no tools, which tool_prompt tells
    of JSON."""
    if not conversation.offered_tools:
        source, vocabulary = _template(conversation, model), model.tokenizer.vocabulary
        return tool_call_formats.choose_whole(setting, source, vocabulary)
    if conversation.tool_choice.mode is ToolMode.REQUIRED and not takes_tools:
        return None
    return format_of(conversation, model, setting=setting, takes_tools=takes_tools)


def _reader(
    format_: ToolCallFormat,
    conversation: Conversation,
    model: ServedModel,
    *,
    is_certain: bool = False,
) -> ToolCallReader:
    vocabulary = model.tokenizer.vocabulary
    token_ids = vocabulary.tokens_of(format_.markers)
    return ToolCallReader(
        partial(
            format_.parser,
            conversation.callable_tools,
            is_certain=is_certain,
            max_calls=None if conversation.parallel_tool_calls else 1,
            marked=frozenset(token_ids),
        ),
        openings=format_.opening,
        kept_token_ids=frozenset(token_ids.values()),
        make_counter=_counter_maker(format_, vocabulary),
    )


def _counter_maker(
    format_: ToolCallFormat, vocabulary: Vocabulary
) -> Callable[[], ReasoningCounter] | None:
    """Returns None if the format does not tell reasoning from text, or not by tokens."""
    if not isinstance(format_, AnswerFormat):
        return None
    header = vocabulary.tokens_of(format_.reasoning)
    ends = frozenset(vocabulary.tokens_of(format_.ends_of_reasoning).values())
    is_told = len(header) == len(format_.reasoning)
    return partial(ReasoningCounter, [*header.values()], ends) if is_told else None
