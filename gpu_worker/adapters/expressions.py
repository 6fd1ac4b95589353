"""Tries the regular expressions of an adapter before the worker matches them.

Python's `re` holds the interpreter while it matches, and some expressions backtrack for longer than
a worker is waited for. So a process with a limit of CPU time matches them first.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass

MAX_CPU_S = 1
"""Seconds of processor time for all expressions of an adapter with all modules of a model."""
_REPEATS = re.compile(r"[*+?{|]")
_TRIAL = f"""
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({MAX_CPU_S}, {MAX_CPU_S}))
expressions, names = json.load(sys.stdin)
for one in expressions:
    matches = re.fullmatch if one["is_whole"] else re.match
    for name in names:
        matches(one["pattern"], name)
"""


@dataclass(frozen=True, slots=True)
class Expression:
    """A regular expression that is matched with names of modules."""

    pattern: str
    is_whole: bool = False
    """True if it is of the whole name, not of its beginning."""


def end_in_time(expressions: Iterable[Expression], names: Iterable[str]) -> bool:
    """Returns whether all expressions, which must be valid, are matched with all names in time."""
    tried = [asdict(one) for one in expressions if _REPEATS.search(one.pattern)]
    if not tried:
        return True
    trial = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _TRIAL],
        input=json.dumps([tried, list(names)]).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return trial.returncode == 0
