"""Requests that the command lines of agents have sent, without the prose in them.

Structure, names and lengths are as they were: a text is filler of the same length. `recorded/` has
a file for each: codex 0.171.0, claude-code 2.1.197, qwen-code 0.15.10 and opencode 1.18.33.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

_FOLDER = Path(__file__).parent / "recorded"
_FILLER = re.compile(r"<(\d+) characters>")
_WORDS = "The tool reads a part of the file and says what stands there. "


class Recorded(NamedTuple):
    """One HTTP request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


def recorded(name: str) -> Recorded:
    """Returns the request of one file, with filler where its texts were."""
    read = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    headers = {key: _filled(value) for key, value in read["headers"]}
    return Recorded(read["method"], read["path"], headers, _filled(read["body"]))


def _filled(value: Any) -> Any:
    match value:
        case dict():
            return {key: _filled(one) for key, one in value.items()}
        case list():
            return [_filled(one) for one in value]
        case str() if found := _FILLER.fullmatch(value):
            length = int(found[1])
            return (_WORDS * (length // len(_WORDS) + 1))[: length - 1] + "."
    return value
