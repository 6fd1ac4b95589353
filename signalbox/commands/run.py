"""`signalbox run`: serves a model, chats with it, and stops the server, in one command.

It uses a running server instead if that serves the model and no flag of `serve` is given. The
answer goes to standard output, everything else to standard error.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from signalbox.client.connection import router_client
from signalbox.client.foreign_flags import add_other_names, add_text_flags, text_of
from signalbox.client.piped_input import with_piped
from signalbox.client.router_flags import DEFAULT_ROUTER, add_sampling_flags
from signalbox.commands import chat
from signalbox.settings.environment import ENV_PREFIX
from signalbox.settings.flag_kinds import Alias
from signalbox.settings.flags.parser import CommandParser
from signalbox.settings.flags.service_flags import add_flags as add_service_flags
from signalbox.settings.foreign_flags import FOREIGN_FLAGS
from signalbox.settings.loading import in_words_of_flags, load
from signalbox.settings.serve_settings import RunSettings
from signalbox.stack.local_stack import LocalStack, running
from signalbox_client import RequestError
from signalbox_rpc.telemetry import logs
from signalbox_worker.runner.loading.model_source import model_name

EXAMPLES = """\
examples
  signalbox run models/SmolLM2-135M-Instruct.Q4_1.gguf "What is the capital of South Korea?"
  signalbox run models/SmolLM2-135M-Instruct.Q4_1.gguf          # a conversation
  cat article.txt | signalbox run org/name "Summarise this:"    # what is piped goes first
Flags of serve and of chat both work; --help=WORD shows those that are about a word.
"""
PROBE_S = 2.0
"""Seconds for a running server to answer with the name of its model."""
T = TypeVar("T")

_CHAT = "conversation"
_MODEL_FLAGS = {
    name
    for name, flag in FOREIGN_FLAGS.items()
    if isinstance(flag, Alias) and flag.setting == "model"
}
_SHAREABLE = _MODEL_FLAGS | {"model", "simulate", "served_model_name", "debug", "log_level"}
"""Settings that a running server can satisfy."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `signalbox run`: those of serve, and those of chat."""
    assert isinstance(parser, CommandParser)
    parser.conflict_handler = "resolve"  # a request's --seed hides that of vLLM's server
    add_service_flags(parser, RunSettings)
    parser.usage, parser.epilog = "%(prog)s MODEL [PROMPT ...] [FLAG ...]", EXAMPLES
    what = "message, after what is piped (default: a conversation)"
    parser.add_argument("prompt", metavar="PROMPT", nargs="*", help=what)
    parser.words = "prompt"
    of_chat = argparse.ArgumentParser(add_help=False)
    of_chat.add_argument("--system", metavar="TEXT", help="instructions before the message")
    of_chat.add_argument("--json", action="store_true", help="print one JSON object an answer")
    add_sampling_flags(of_chat)
    add_text_flags(of_chat, "-p", "--prompt")  # -q is --quantization
    add_other_names(of_chat)
    group = parser.add_argument_group(_CHAT)
    for action in of_chat._actions:
        group._add_action(action)
    parser.set_defaults(chat_options={action.dest for action in of_chat._actions})


def run(options: dict[str, Any]) -> None:
    """Answers the prompt, or each message typed."""
    words, names = options.pop("prompt"), options.pop("chat_options")
    asked = {name: options.pop(name) for name in names}
    has_model = options.get("simulate") or _MODEL_FLAGS & options.keys()
    if has_model and "model" in options:  # then the first word is no MODEL
        words.insert(0, options.pop("model"))
    asked["message"] = with_piped(text_of({**asked, "words": " ".join(words) or None}, "words"))
    notices: list[str] = []
    settings = load(RunSettings, options, tell=notices.append)
    for notice in notices:
        print(notice, file=sys.stderr)
    logs.configure(service="run", level=settings.log_level, log_format=settings.log_format)
    may_share = not (options.keys() - _SHAREABLE)
    try:
        asyncio.run(_run(settings, asked, may_share=may_share))
    except (OSError, ValueError, MemoryError) as error:
        raise RuntimeError(in_words_of_flags(str(error))) from error


async def _run(settings: RunSettings, asked: dict[str, Any], *, may_share: bool) -> None:
    address = os.environ.get(ENV_PREFIX + "ROUTER", DEFAULT_ROUTER)
    if may_share and (model := await _served_name(address, settings)):
        print(f"using the server at {address}", file=sys.stderr)
        await chat.talk({**asked, "router": address, "model": model})
        return
    async with running(settings) as stack:
        router = stack.addresses.router
        await while_it_serves(chat.talk({**asked, "router": router, "model": ""}), stack)


async def while_it_serves(work: Coroutine[Any, Any, T], stack: LocalStack) -> T:
    """Returns the result of the work. Raises ServiceDied if the stack ends before it."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(stack.wait())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()
        return await working
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _served_name(address: str, settings: RunSettings) -> str:
    """Returns the name of this model at a router that answers without a key and serves it; else
    an empty one."""
    own = "simulated" if settings.simulate else model_name(settings)
    names = settings.served_model_name or (own,)
    with suppress(RequestError, TimeoutError):
        async with asyncio.timeout(PROBE_S), router_client(address) as client:
            return next((one.name for one in await client.models() if one.name in names), "")
    return ""
