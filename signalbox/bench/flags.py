"""The flags of `signalbox bench`, and the checks of their combinations."""

import argparse
from typing import Any

from signalbox.client.router_flags import add_router_flags
from signalbox.settings.flags.parser import CommandParser

EXAMPLES = """\
examples
  signalbox bench                                              # 64 requests, 8 at a time
  signalbox bench --concurrency 32 --requests 256
  signalbox bench --rate 4 --requests 200                      # open loop, Poisson arrivals
  signalbox bench --shared-tokens 1024 --num-prefixes 4        # what the prefix cache is worth
  signalbox bench --replay requests.jsonl --speed 2            # as logged, twice as fast
  signalbox bench --url http://127.0.0.1:8000/v1 --json        # any OpenAI endpoint
  signalbox bench --embed --concurrency 32 --texts 4           # texts of mixed lengths to embed

Ctrl-C prints the figures so far and exits with status 130; status 1 means that a request failed

a line of --replay is {"prompt": ...} or {"messages": ...}, with sampling parameters by OpenAI's
names and, to be sent at its time, a "timestamp" in seconds; or a line of an OpenAI batch file
"""
DEFAULTS = {
    "prompt_tokens": 128,
    "max_tokens": 128,
    "shared_tokens": 0,
    "num_prefixes": 1,
    "vocab_size": None,
    "chat": False,
    "no_ignore_eos": False,
    "embed": False,
    "texts": 1,
}
"""Defaults for the content of requests, unless they are replayed."""
_OF_TEXTS = frozenset({"embed", "texts", "prompt_tokens"})
"""The flags of the content that --embed takes."""
_NUMBERS = {
    "prompt_tokens": "tokens of each prompt; with --embed words of the longest text (default 128)",
    "max_tokens": "tokens of each answer (default 128)",
    "shared_tokens": "shared tokens before each prompt (default 0)",
    "num_prefixes": "different shared prefixes, used in turn (default 1)",
    "vocab_size": "send random token ids below N; 0: words (default: the model's, with --url 0)",
    "texts": "texts of each request, with --embed (default 1)",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    assert isinstance(parser, CommandParser)
    parser.remedies["--plot"] = "--json prints the figures, for a program that draws"
    _add_pace_flags(parser)
    _add_content_flags(parser.add_argument_group("what is asked"))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    where = parser.add_argument_group("target")
    where.add_argument("--url", metavar="URL", help="an OpenAI endpoint instead of a router")
    where.add_argument(
        "--model",
        metavar="NAME",
        help="model of the requests (default: the only one; with --url the first listed)",
    )
    where.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="limit for each request (default: none)"
    )
    add_router_flags(parser)


def _add_pace_flags(parser: argparse.ArgumentParser) -> None:
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--concurrency", type=int, metavar="N", help="requests at a time, closed loop (default 8)"
    )
    pace.add_argument(
        "--rate", type=float, metavar="X", help="requests a second at random times, open loop"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of prompts and times"
    )
    parser.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help="number of requests (default 64, or all of --replay)",
    )


def _add_content_flags(group: Any) -> None:
    for name, text in _NUMBERS.items():
        group.add_argument("--" + name.replace("_", "-"), type=int, metavar="N", help=text)
    group.add_argument(
        "--embed",
        action="store_true",
        default=None,
        help="send texts of mixed lengths to embed",
    )
    group.add_argument(
        "--chat", action="store_true", default=None, help="send chat requests, in words"
    )
    group.add_argument(
        "--no-ignore-eos",
        action="store_true",
        default=None,
        help="let answers end where the model ends them",
    )
    group.add_argument("--replay", metavar="FILE", help="the requests of a JSONL file instead")
    group.add_argument(
        "--speed", type=float, metavar="X", help="factor of the timestamps in --replay (default 1)"
    )


def check(options: dict[str, Any]) -> None:
    """Raises ValueError for a value out of range or a flag without effect, before anything is
    sent."""
    given = {name for name in DEFAULTS if options[name] is not None}
    if options["replay"] and given:
        raise ValueError(f"{_flag(min(given))} has no effect with --replay")
    if options["chat"] and options["vocab_size"]:
        raise ValueError("--vocab-size has no effect with --chat, which asks in words")
    if options["embed"] and (unused := given - _OF_TEXTS):
        raise ValueError(f"{_flag(min(unused))} has no effect with --embed")
    if options["texts"] and not options["embed"]:
        raise ValueError("--texts has no effect without --embed")
    if options["speed"] is not None and not options["replay"]:
        raise ValueError("--speed has no effect without --replay")
    for name in ("speed", "timeout"):
        if options[name] is not None and not 0 < options[name] < float("inf"):
            raise ValueError(f"--{name} is {options[name]:g}; it must be above 0")
    for name in ("requests", "concurrency"):
        if options[name] is not None and options[name] < 1:
            raise ValueError(f"--{name} is {options[name]}; it must be at least 1")
    if options["seed"] < 0:
        raise ValueError(f"--seed is {options['seed']}; it cannot be negative")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
