"""Types of settings that vLLM writes in several ways: 8k tokens, half precision."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

_SCALES = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_WHOLE = "give a whole number, or one such as 8k (8,000), 25.6k or 8K (8,192)"
_NUMBER = re.compile(r"[+-]?\d+(?:\.0*)?")
_SCALED = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")


def count(value: Any) -> Any:
    """Returns 8000 for "8k" and 8192 for "8K", as vLLM does; other values unchanged.

    Raises ValueError for a fraction of a power of two, and for text that is not a whole number.
    """
    found = _SCALED.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            raise ValueError(_WHOLE)
        return value
    number, scale = found.groups()
    if "." not in number:
        return int(number) * _SCALES[scale]
    whole, _, fraction = number.partition(".")
    scaled = int(whole + fraction) * _SCALES[scale]
    if scale.isupper() or scaled % 10 ** len(fraction):
        raise ValueError(_WHOLE)
    return scaled // 10 ** len(fraction)


def whole_number(text: str) -> int:
    """Returns the number that `count` reads in a text. Raises ValueError."""
    return int(str(count(text)).partition(".")[0])


def window(value: Any) -> Any:
    """Returns the same as `count`, and None for vLLM's names of the default."""
    return None if str(value) in ("-1", "auto") else count(value)


def renamed(names: Mapping[str, str]) -> Callable[[Any], Any]:
    """Returns a function that replaces vLLM's name of a choice by ours."""
    return lambda value: names.get(value, value) if isinstance(value, str) else value


def in_lower_case(value: Any) -> Any:
    """Returns "debug" for "DEBUG"."""
    return value.lower() if isinstance(value, str) else value


def joined(value: Any) -> Any:
    """Returns "a,b" for a list, also one in JSON, as in vLLM's --allowed-origins.

    Raises ValueError for a list with items other than texts.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("it is no list in JSON") from None
    if not isinstance(value, list):
        return value
    if not all(isinstance(one, str) for one in value):
        raise ValueError("a list has texts alone")
    return ",".join(value)


Count = Annotated[int, BeforeValidator(count)]
"""A number of tokens or sequences."""


def texts(value: Any) -> Any:
    """Returns the parts of one or several texts, split at commas; other values unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return texts(",".join(value))
    return value


Texts = Annotated[tuple[str, ...], BeforeValidator(texts)]
"""Several texts, or one text with commas between them."""


def json_text(value: Any) -> Any:
    """Returns the value as JSON text; a YAML file, and `LLM`, may give a mapping."""
    return json.dumps(value) if isinstance(value, Mapping) else value


def from_json(text: str) -> Any:
    """Returns the value that a text has in JSON. Raises ValueError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from None
