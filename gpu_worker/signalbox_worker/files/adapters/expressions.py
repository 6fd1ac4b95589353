"""Matches the regular expressions of an adapter with the names of a model's modules.

Python's `re` holds the interpreter while it compiles and matches, some expressions backtrack for
longer than a worker is waited for, and an adapter may have any number. So `main`, in a process with
limits that the kernel enforces (`signalbox_rpc.lifetime.limited_program`), matches all but a few
plain names.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from signalbox_rpc.lifetime.limited_program import ProgramLimits, command

MAX_CPU_S = 2
"""Seconds of processor time for all expressions of an adapter with all modules of a model."""
MAX_MEMORY_BYTES = 512 << 20
_LIMITS = ProgramLimits(cpu_s=MAX_CPU_S, memory_bytes=MAX_MEMORY_BYTES)
_MAX_WALL_S = 60.0
_FEW_CHARS = 4_096
"""Characters of simple expressions that are matched in this process."""
_SIMPLE = re.compile(r"[A-Za-z0-9_.]*")


class Expression(NamedTuple):
    """A regular expression that is matched with names of modules."""

    pattern: str
    is_whole: bool = False
    """True if it is of the whole name, not of its beginning."""


class Match(NamedTuple):
    """Which of several expressions is the first that matches a name."""

    number: int
    last_group: str
    """Text that the last of its groups matches; empty if it matches none."""


Groups = Mapping[str, Sequence[Expression]]
"""Lists of expressions by what they are for."""
Found = dict[str, dict[str, Match]]
"""The match of each name that has one, by list."""


class TakesTooMuch(ValueError):
    """The expressions take more time or memory than they may."""


def first_matches(groups: Groups, names: Iterable[str]) -> Found:
    """Returns which expression of each list is the first to match a name.

    Raises TakesTooMuch, or ValueError or RecursionError for an expression that is not valid.
    """
    patterns = [one.pattern for group in groups.values() for one in group]
    if sum(map(len, patterns)) <= _FEW_CHARS and all(map(_SIMPLE.fullmatch, patterns)):
        return _first_matches(groups, list(names))
    job = json.dumps([groups, list(names)]).encode()
    try:
        done = subprocess.run(
            command(__name__, limits=_LIMITS),
            input=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_MAX_WALL_S,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired):  # it was ended before its answer
        raise TakesTooMuch from None
    if "error" in answer:
        raise ValueError(answer["error"])
    return {
        group: {name: Match(*match) for name, match in found.items()}
        for group, found in answer.items()
    }


def _first_matches(groups: Groups, names: Sequence[str]) -> Found:
    return {group: _matches(expressions, names) for group, expressions in groups.items()}


def _matches(expressions: Sequence[Expression], names: Sequence[str]) -> dict[str, Match]:
    compiled = [(re.compile(pattern), is_whole) for pattern, is_whole in expressions]
    matching = [one.fullmatch if is_whole else one.match for one, is_whole in compiled]
    found = {}
    for name in names:
        for index, match in enumerate(matching):
            if (one := match(name)) is not None:
                last = one[one.re.groups] if one.re.groups else ""
                found[name] = Match(index, last or "")
                break
    return found


def _answer(job: Any) -> dict[str, Any]:
    groups, names = job
    try:
        return _first_matches(groups, names)
    except (re.error, RecursionError, OverflowError) as error:
        return {"error": str(error)[:1000]}


def main() -> None:
    """Reads lists of expressions and names, and writes the matches, in JSON."""
    sys.stdout.write(json.dumps(_answer(json.load(sys.stdin))))
