"""Flags of the commands that call a router: its address, and a request's sampling parameters."""

import argparse
import os
from pathlib import Path
from typing import Any

from signalbox.client.connection import add_connection_flags
from signalbox.client.foreign_flags import add_other_names
from signalbox.client.named_files import reading
from signalbox.settings.environment import ENV_PREFIX
from signalbox_contract.sampling_params import API_LIMITS

DEFAULT_ROUTER = "127.0.0.1:50051"

_SAMPLING = {name: limit for name, limit in API_LIMITS.items() if limit.meaning}
_DEFAULTS = {
    "max_tokens": " (default: the server's, or what the window leaves; of chat 1,024)",
}
_STRUCTURES = {"json_schema": "FILE", "regex": "PATTERN", "grammar": "FILE"}


def add_router_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --router, the TLS flags, --api-key and --debug; comes after the other flags."""
    parser.add_argument(
        "--router",
        metavar="HOST:PORT",
        default=os.environ.get(ENV_PREFIX + "ROUTER", DEFAULT_ROUTER),
        help=f"the router's address (default {DEFAULT_ROUTER}; env {ENV_PREFIX}ROUTER)",
    )
    add_connection_flags(parser, api_key=True)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    add_other_names(parser)


def add_model_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="NAME",
        default="",
        help="name of the model or adapter (default: the only one that can answer)",
    )


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each sampling parameter with a scalar value."""
    for name, limit in _SAMPLING.items():
        flag = "-n" if name == "n" else "--" + name.replace("_", "-")
        metavar = "N" if limit.kind is int else "X"
        text = limit.meaning + _DEFAULTS.get(name, "" if limit.kind is int else f", in {limit}")
        parser.add_argument(flag, dest=name, type=limit.kind, metavar=metavar, help=text)
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="ends the text; may be repeated"
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", default=None, help="go on after the model's end token"
    )
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--json-schema", metavar="FILE", help="the text is JSON of this schema")
    shapes.add_argument(
        "--regex", metavar="PATTERN", help="regular expression that the whole text matches"
    )
    shapes.add_argument(
        "--grammar", metavar="FILE", help="the text conforms to this GBNF or Lark grammar"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="limit for the whole request"
    )


def request_options(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options as arguments of the client's calls. Raises ValueError."""
    timeout_s = options["timeout"]
    if timeout_s is not None and not 0 < timeout_s < float("inf"):
        raise ValueError(f"--timeout is {timeout_s:g}; it must be above 0")
    names = (*_SAMPLING, "stop", "ignore_eos")
    asked = {name: options[name] for name in names if options[name] is not None}
    for name, kind in _STRUCTURES.items():
        if (value := options[name]) is not None:
            content = _read(Path(value), name) if kind == "FILE" else value
            asked["structured_output"] = {name: content}
    return {**asked, "timeout_s": timeout_s}


def set_option(asked: dict[str, Any], name: str, value: str) -> None:
    """Sets a sampling parameter as its flag does; without a value, removes it.

    Raises ValueError for an unknown name, or a value of another type.
    """
    name = name.lstrip("-").replace("-", "_")
    if name not in _SAMPLING:
        raise ValueError(f"nothing is called {name!r}; there are {', '.join(_SAMPLING)}")
    kind = _SAMPLING[name].kind
    if not value:
        asked.pop(name, None)
        return
    try:
        asked[name] = kind(value)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} takes {expected}, not {value!r}") from None


def _read(path: Path, name: str) -> str:
    with reading(path, f"--{name.replace('_', '-')}"):
        return path.read_text(encoding="utf-8")
