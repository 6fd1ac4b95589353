"""`signalbox chat`: answers one message, or holds a conversation on a terminal."""

import argparse
import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from signalbox.client.connection import connection, router_client
from signalbox.client.foreign_flags import TEXT_FLAGS, add_text_flags, text_of
from signalbox.client.piped_input import with_piped
from signalbox.client.router_flags import (
    add_model_flag,
    add_router_flags,
    add_sampling_flags,
    request_options,
    set_option,
)
from signalbox.client.terminal_answer import TimedAnswer, explained, show
from signalbox.commands.chat_defaults import chat_defaults
from signalbox.settings.spelling import did_you_mean
from signalbox_client import Answer
from signalbox_contract.wording import counted

EXAMPLES = """\
examples
  signalbox chat "What is the capital of South Korea?"
  signalbox chat                                       # a conversation; /help lists its commands
  signalbox chat --system "Answer in French." --temperature 0 "Good morning"
  cat article.txt | signalbox chat "Summarise this:"   # what is piped goes first
  echo "Summarise: ..." | signalbox chat --json --router gpu1:50051
"""
COMMANDS = """\
/clear          forget the conversation
/system TEXT    set the system prompt, and forget the conversation
/undo           forget the last question and its answer
/history        show the conversation
/set            show the sampling parameters that are set
/set NAME X     set one, as in /set temperature 0; without X, unset it
/help, /?       show this list
/exit, /quit, /bye
                end the conversation, as Ctrl-D does
\"""             begins a message of several lines, and ends it
Ctrl-C          stop an answer; its part stays in the conversation"""
_NAMES = re.findall(r"/\w+", COMMANDS)
_QUOTES = '"""'


def add_flags(parser: argparse.ArgumentParser) -> None:
    what = "message, after what is piped (default: what is piped, or a conversation on a terminal)"
    parser.add_argument("message", metavar="MESSAGE", nargs="?", help=what)
    parser.add_argument("--system", metavar="TEXT", help="instructions before the message")
    parser.add_argument("--json", action="store_true", help="print one JSON object an answer")
    add_sampling_flags(parser)
    add_model_flag(parser)
    add_router_flags(parser)
    add_text_flags(parser, *TEXT_FLAGS)


def run(options: dict[str, Any]) -> None:
    """Prints the answer to one message, or to each message typed."""
    asyncio.run(talk({**options, "message": with_piped(text_of(options, "message"))}))


@dataclass(slots=True)
class ChatSession:
    """The messages of a conversation, oldest first."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    """Messages as in a request: role and content."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters from flags and /set, as arguments of the client's calls."""
    coming: Answer | None = None
    """The answer that is streaming, or streamed last."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, the instructions first."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def undo(self) -> None:
        """Removes the last question and its answer."""
        del self.turns[-2:]

    def ask(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})


async def talk(options: dict[str, Any]) -> None:
    """Answers options["message"], or typed messages if it is None, by the router of the flags."""
    conversation = ChatSession(options["system"], asked=request_options(options))
    as_json, message, model = options["json"], options["message"], options["model"]
    if message is not None and not message.strip():
        raise ValueError(
            "the message is empty; give one, or none on a terminal to hold a conversation"
        )
    async with router_client(options["router"], connection(options)) as client:
        with explained(client.address):
            served = await client.model(model)
        _say(chat_defaults(conversation.asked, served.default_sampling_params).summary)

        async def show_answer(asked: dict[str, Any]) -> TimedAnswer:
            stream = client.stream_chat(conversation.messages, model=model, **asked)
            conversation.coming = stream.answer
            return await show(stream, address=client.address, as_json=as_json)

        async def answer() -> TimedAnswer:
            given = conversation.asked
            defaults = chat_defaults(given, served.default_sampling_params)
            try:
                came = await show_answer({**defaults.options, **given})
            except RuntimeError as error:
                if not defaults.may_be_uncapped(error.__cause__):
                    raise
                came = await show_answer({**defaults.drawing, **given})
            if defaults.max_tokens is not None and defaults.has_ended(came.answer):
                _say(f"ended at {counted(defaults.max_tokens, 'token')}; --max-tokens allows more")
            return came

        if message is None:
            await _converse(conversation, answer)
            return
        conversation.ask(message)
        await answer()


def _say(text: str) -> None:
    """Prints a note on standard error, so that a pipe receives only answers."""
    if text:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(text, "dim"))


async def _converse(conversation: ChatSession, answer: Any) -> None:
    """Answers typed messages until the end of input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives `input` line editing and earlier lines)
    console = Console(stderr=True, highlight=False)
    console.print('[dim]/help lists the commands; """ begins a message of several lines[/dim]')
    while (text := _typed()) is not None:
        if text.startswith("/"):
            if not obey(text, conversation, console):
                return
        elif text:
            conversation.ask(text)
            await _answer_or_forget(conversation, answer, console)


async def _answer_or_forget(conversation: ChatSession, answer: Any, console: Console) -> None:
    """Answers; Ctrl-C keeps the part of the answer so far. A question that fails is removed."""
    conversation.coming = None
    try:
        came = await _until_interrupted(answer())
        conversation.answered(came.answer.text)
    except asyncio.CancelledError:
        if conversation.coming is not None and conversation.coming.text:
            conversation.answered(conversation.coming.text)
            console.print("\n[dim]stopped; the conversation keeps this part of the answer[/dim]")
        else:
            conversation.turns.pop()
            console.print("\n[dim]stopped; the question is forgotten[/dim]")
    except RuntimeError as error:
        conversation.turns.pop()
        console.print(str(error), style="red", markup=False)


async def _until_interrupted(answer: Coroutine[Any, Any, TimedAnswer]) -> TimedAnswer:
    """Awaits an answer; Ctrl-C cancels only the answer, which aborts its request."""
    task = asyncio.create_task(answer)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return await task
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _typed() -> str | None:
    """Returns the next message, "" for one that Ctrl-C has cleared, None at the end of input."""
    # asyncio's own handler would cancel the task, but `input` does not notice that.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        text = input("> ").strip()
        return _lines(text) if text.startswith(_QUOTES) else text
    except EOFError:
        print(file=sys.stderr)
        return None
    except KeyboardInterrupt:
        print("\nCtrl-D or /exit ends the conversation", file=sys.stderr)
        return ""
    finally:
        signal.signal(signal.SIGINT, handler)


def _lines(text: str) -> str:
    """Returns a message of several lines without its quotes; `text` is the first line."""
    while len(text) < 2 * len(_QUOTES) or not text.endswith(_QUOTES):
        text += "\n" + input("... ").rstrip()
    return text[len(_QUOTES) : -len(_QUOTES)].strip()


def _set(text: str, conversation: ChatSession, console: Console) -> None:
    """Changes or shows the sampling parameters of later answers."""
    name, _, value = text.strip().partition(" ")
    try:
        if name:
            set_option(conversation.asked, name, value.strip())
    except ValueError as error:
        console.print(str(error), style="red", markup=False)
        return
    said = {name: value for name, value in conversation.asked.items() if value is not None}
    set_here = ", ".join(f"{name} {value}" for name, value in said.items())
    console.print(set_here or "none is set: the defaults apply")


def obey(command: str, conversation: ChatSession, console: Console) -> bool:
    """Runs a line that begins with a slash; returns whether the conversation continues."""
    name, _, rest = command.partition(" ")
    match name:
        case "/clear":
            conversation.turns.clear()
        case "/system":
            conversation.system = rest.strip() or None
            conversation.turns.clear()
        case "/undo":
            conversation.undo()
        case "/history":
            for turn in conversation.messages:
                console.print(f"{turn['role']}: {turn['content']}", markup=False)
        case "/set":
            _set(rest, conversation, console)
        case "/exit" | "/quit" | "/bye":
            return False
        case "/help" | "/?":
            console.print(COMMANDS, markup=False)
        case _:
            hint = did_you_mean(name, _NAMES) or ";"
            text = f"there is no command {name}{hint} /help lists them"
            console.print(text, style="red", markup=False)
    return True
