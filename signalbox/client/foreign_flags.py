"""Flags of other programs' commands that call a server: other names of ours, or what to use."""

import argparse
from collections.abc import Mapping
from copy import copy
from typing import Any

from signalbox.settings.flags.parser import CommandParser

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "temperature": ("--temp",),
    "max_tokens": (
        "--n-predict",
        "--predict",
        "--num-predict",
        "--max-completion-tokens",
        "--random-output-len",
    ),
    "prompt_tokens": ("--random-input-len",),
    "shared_tokens": ("--random-prefix-len",),
    "repetition_penalty": ("--repeat-penalty",),
    "typical_p": ("--typical",),
    "seed": ("-s",),
    "stop": ("-r", "--reverse-prompt"),
    "json_schema": ("-jf", "--json-schema-file"),
    "grammar": ("--grammar-file",),
    "model": ("-m", "--model-name"),
    "system": ("-sys", "--system-prompt"),
    "requests": ("--num-prompts",),
    "rate": ("--request-rate",),
    "concurrency": ("--max-concurrency",),
    "url": ("--base-url",),
}
"""Names of llama.cpp, Ollama and vLLM for what our flags set, by our name with underscores."""
TEXT_FLAGS = ("-p", "--prompt", "-q", "--quick")
"""Flags of llama.cpp and vLLM with the text that is an argument here."""
_PIPED = "pipe a file: signalbox COMMAND < FILE"
_ALWAYS_STREAMED = "answers are streamed; --json prints one whole"
_OF_SERVER = "it is the server's: a flag of serve and of run"
REMEDIES: Mapping[str, str] = {
    **dict.fromkeys(TEXT_FLAGS, "give the text as an argument"),
    "-f": _PIPED,
    "--file": _PIPED,
    "--format": "--json-schema FILE gives the form",
    "--stream": _ALWAYS_STREAMED,
    "--no-stream": _ALWAYS_STREAMED,
    "--verbose": "times are always shown; --debug shows tracebacks",
    "-v": "times are always shown; --debug shows tracebacks",
    "-cnv": "without a text on a terminal, chat holds a conversation",
    "--conversation": "without a text on a terminal, chat holds a conversation",
    "-i": "without a text on a terminal, chat holds a conversation",
    "--interactive": "without a text on a terminal, chat holds a conversation",
    "-st": "a text as argument is answered once",
    "--single-turn": "a text as argument is answered once",
    "--nowordwrap": "lines are not broken",
    "--keepalive": "the model stays loaded while the server runs",
    "--think": "the model's template decides; send enable_thinking over HTTP",
    "--dataset-name": "prompts are words of a seed; --replay FILE has yours",
    "--backend": "--url URL is an OpenAI endpoint, and --router HOST:PORT a router",
    "--ignore-eos": "each answer has --max-tokens; --no-ignore-eos lets it end before",
    "--save-result": "--json prints the figures",
    "--insecure": "without --tls-ca nothing is encrypted",
    **dict.fromkeys(
        ("-c", "--ctx-size", "-t", "--threads", "-b", "-ngl", "-fa", "-hf"), _OF_SERVER
    ),
}


def add_other_names(parser: argparse.ArgumentParser) -> None:
    """Adds the other names of flags that the parser has, and what is said of others."""
    for action in list(parser._actions):
        known = parser._option_string_actions
        if not action.option_strings:
            continue
        names = [name for name in OTHER_NAMES.get(action.dest, ()) if name not in known]
        if names:
            _add_twin(parser, action, names)
    if isinstance(parser, CommandParser):
        parser.remedies |= REMEDIES


def add_text_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds the flags with a text, of TEXT_FLAGS, that `text_of` takes."""
    parser.add_argument(*names, dest="text", metavar="TEXT", help=argparse.SUPPRESS)


def _add_twin(parser: argparse.ArgumentParser, action: argparse.Action, names: list[str]) -> None:
    """Adds an action again under other names, to its groups as well."""
    twin = copy(action)
    twin.option_strings, twin.help = names, argparse.SUPPRESS
    parser._add_action(twin)
    for group in parser._mutually_exclusive_groups:
        if action in group._group_actions:
            group._group_actions.append(twin)


def text_of(options: dict[str, Any], name: str) -> str | None:
    """Returns the argument of that name, or the value of a text flag. Raises ValueError for
    both."""
    text: str | None = options.get("text")
    given: str | None = options[name]
    if text is not None and given is not None:
        raise ValueError("the text is given twice, as an argument and as a flag; give it once")
    return given if text is None else text
