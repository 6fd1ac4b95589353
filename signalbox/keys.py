"""`signalbox keys create`: makes an API key; prints it once, and the lines for --api-keys."""

import argparse
import hashlib
import json
import secrets
import sys
from typing import Any

PREFIX = "sb-"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `signalbox keys` takes."""
    parser.add_argument("action", choices=["create"], help="what to do")
    parser.add_argument("name", metavar="NAME", help="who the key is for")
    parser.add_argument("--tenant", help="whose requests these are (default: NAME)")
    parser.add_argument(
        "--models", metavar="NAME,...", help="models that the key may use (default: all)"
    )
    for limit, text in (
        ("max-concurrent-requests", "requests that may run at a time"),
        ("tokens-per-minute", "tokens of prompts and answers"),
    ):
        parser.add_argument(f"--{limit}", type=int, metavar="N", help=f"{text} (default: any)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Prints the entry for the file on standard output and the key on standard error."""
    key = PREFIX + secrets.token_urlsafe(32)
    models = options["models"].split(",") if options["models"] else None
    fields = {
        "name": options["name"],
        "sha256": hashlib.sha256(key.encode()).hexdigest(),
        "tenant": options["tenant"],
        "models": models,
        "max_concurrent_requests": options["max_concurrent_requests"],
        "tokens_per_minute": options["tokens_per_minute"],
    }
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items() if value is not None]
    print("- " + "\n  ".join(lines), flush=True)
    print(f"the key, which is shown only now: {key}", file=sys.stderr)
