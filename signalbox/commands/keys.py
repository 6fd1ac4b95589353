"""`signalbox keys`: creates API keys, lists those of a file and revokes them.

The file holds the SHA-256 of each key, never the key. The router looks in each call whether it has
changed, and reads it under the lock that is held here, so that changes take effect at once.
"""

import argparse
import fcntl
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from signalbox.client.named_files import reading, writing
from signalbox_router.limits.api_keys import ApiKey, parse_keys
from signalbox_router.limits.key_file import is_unwritten, item_starts

PREFIX = "sb-"
EXAMPLES = """\
  signalbox keys create alice --file keys.yaml     adds an entry; the key is shown once
  signalbox keys create alice >> keys.yaml         the same
  signalbox keys list --file keys.yaml
  signalbox keys revoke alice --file keys.yaml
"""
_LIMITS = {
    "max_concurrent_requests": "requests that may run at a time",
    "tokens_per_minute": "tokens of prompts and answers",
}
_NO_KEYS = "---\n"
"""A YAML document without content, to which entries can be appended."""
_STANDARD_OUTPUT = Path("/proc/self/fd/1")


def add_flags(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a key", description="Make a key.")
    create.add_argument("name", metavar="NAME", help="client that the key is for")
    create.add_argument("--tenant", help="tenant that owns the key's requests (default: NAME)")
    create.add_argument(
        "--models", metavar="NAME,...", help="models that the key may use (default: all)"
    )
    for limit, text in _LIMITS.items():
        flag = "--" + limit.replace("_", "-")
        create.add_argument(flag, type=int, metavar="N", help=f"{text} (default: any)")
    create.add_argument(
        "--operator",
        action="store_true",
        help="let the key see what the schedulers decide, and the history of any request",
    )
    listing = actions.add_parser("list", help="show the keys", description="Show the keys.")
    listing.add_argument("--json", action="store_true", help="print one JSON array instead")
    revoke = actions.add_parser("revoke", help="take a key back", description="Take a key back.")
    revoke.add_argument("name", metavar="NAME", help="name of the key")
    for action in (create, listing, revoke):
        without = " (default: standard output)" if action is create else ""
        action.add_argument(
            "--file",
            metavar="FILE",
            required=action is not create,
            help=f"the file of --api-keys{without}",
        )
        action.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Creates, lists or revokes keys. Raises ValueError."""
    {"create": _create, "list": _list, "revoke": _revoke}[options["action"]](options)


def _create(options: dict[str, Any]) -> None:
    """Writes the entry to the file or standard output, and the key to standard error."""
    key = PREFIX + secrets.token_urlsafe(32)
    entry = _entry(options, hashlib.sha256(key.encode()).hexdigest())
    if options["file"] is None:
        is_file = _STANDARD_OUTPUT.is_file()  # `>> keys.yaml`
        with _lock(sys.stdout) if is_file else nullcontext():
            if is_file:
                _check_new(entry, _STANDARD_OUTPUT.read_text(encoding="utf-8"), "standard output")
            print(entry, end="", flush=True)
    else:
        with writing(options["file"], "--file"), _locked(Path(options["file"]), "a+") as file:
            file.seek(0)
            before = file.read()
            _check_new(entry, before, f"--file {options['file']}")
            file.write("\n" * bool(before and before[-1] != "\n") + entry)
    print(f"the key, which is shown only now: {key}", file=sys.stderr)


def _entry(options: dict[str, Any], digest: str) -> str:
    fields = {
        "name": options["name"],
        "sha256": digest,
        "tenant": options["tenant"],
        "models": options["models"].split(",") if options["models"] else None,
        **{limit: options[limit] for limit in _LIMITS},
        "operator": options["operator"] or None,
    }
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items() if value is not None]
    entry = "- " + "\n  ".join(lines) + "\n"
    parse_keys(entry, "the new entry")  # refuses what the router would refuse
    return entry


def _check_new(entry: str, before: str, place: str) -> None:
    (new,) = parse_keys(entry, place)
    if any(key.name == new.name for key in parse_keys(before, place)):
        raise ValueError(
            f"{place} has a key for {new.name}; revoke it first, or choose another name"
        )


def _list(options: dict[str, Any]) -> None:
    keys = _read(options["file"])
    if options["json"]:
        print(json.dumps([_shown(key) for key in keys]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "name", "tenant", "models", "at a time", "tokens a minute", "operator", "sha256", box=None
    )
    for key in keys:
        shown = _shown(key)
        models = ", ".join(shown["models"]) if shown["models"] is not None else "all"
        limits = ("any" if shown[limit] is None else f"{shown[limit]:,}" for limit in _LIMITS)
        operator = "yes" if key.operator else "no"
        table.add_row(key.name, key.tenant, models, *limits, operator, f"{shown['sha256'][:8]}...")
    Console(highlight=False, markup=False).print(table)


def _read(path: str) -> tuple[ApiKey, ...]:
    with reading(path, "--file"):
        text = Path(path).read_text(encoding="utf-8")
    return parse_keys(text, f"--file {path}")


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "tenant": key.tenant,
        "models": None if key.models is None else sorted(key.models),
        **{limit: getattr(key, limit) for limit in _LIMITS},
        "operator": key.operator,
        "sha256": key.sha256.hex(),
    }


def _revoke(options: dict[str, Any]) -> None:
    """Removes the entry's lines from the file, and leaves the others unchanged."""
    path, name = options["file"], options["name"]
    with writing(path, "--file"), _locked(Path(path), "r+") as file:
        before = file.read()
        after = _without(before, name, f"--file {path}")
        # Written in place: a container that mounts the file itself would not see a replacement.
        file.seek(0)
        file.write(after)
        file.truncate()
    print(f"revoked the key for {name}", file=sys.stderr)


def _without(text: str, name: str, place: str) -> str:
    keys = parse_keys(text, place)
    index = next((i for i, key in enumerate(keys) if key.name == name), None)
    if index is None:
        names = ", ".join(key.name for key in keys) or "none"
        raise ValueError(f"{place} has no key for {name}; it has: {names}")
    starts = [*item_starts(text), len(text)]
    try:
        kept = text[: starts[index]] + text[starts[index + 1] :]
        if is_unwritten(kept):  # which the router takes for a file that is about to be written
            kept += _NO_KEYS
        is_whole = list(parse_keys(kept, place)) == [key for key in keys if key.name != name]
    except (ValueError, IndexError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{place} is not in the form of `signalbox keys create`; take {name} out")
    return kept


@contextmanager
def _locked(path: Path, mode: str) -> Iterator[IO[str]]:
    """Yields the file while no other `signalbox keys` changes it, and no router reads it."""
    with path.open(mode, encoding="utf-8") as file, _lock(file):
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _lock(file: IO[str]) -> Iterator[None]:
    """Holds the lock of an open file, which a shell may keep open for longer."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
