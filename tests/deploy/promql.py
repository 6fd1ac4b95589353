"""Just enough of PromQL to say which metrics, and which of their labels, an expression asks for."""

import re
from collections import defaultdict

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RANGE = re.compile(r"\[[^\]]*\]")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(
    r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(?![\w:])(?!\s*\()\s*(?:\{([^}]*)\})?"  # no call
)
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_WORDS = {"and", "or", "unless", "offset", "bool"}


def asked(expression: str) -> dict[str, set[str]]:
    """Returns the labels that an expression goes by, for each metric in it.

    What results are grouped by is under "": it must be a label of some metric of the expression.
    """
    plain = _RANGE.sub("", _STRING.sub('""', expression))
    found: defaultdict[str, set[str]] = defaultdict(set)
    for labels in _GROUPING.findall(plain):
        found[""] |= {label.strip() for label in labels.split(",") if label.strip()}
    for name, matchers in _SELECTOR.findall(_GROUPING.sub(" ", plain)):
        if name not in _WORDS:
            found[name] |= set(_LABEL.findall(matchers))
    return dict(found)
