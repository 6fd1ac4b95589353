"""Requests of which one field is made long, deep, wide, repeated, slow, or left unfinished.

The fields are those of the protos' descriptors and of the HTTP API's pydantic types, so a new one
is covered by itself. Each shape is bytes; nothing here knows what a field means.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Shape = Literal["long", "deep", "wide", "repeated", "slow", "unfinished"]
SLOW_BYTES = 4096
"""Of a body that comes a byte at a time, however large others are."""


@dataclass(frozen=True, slots=True)
class Inflated:
    """One field of one endpoint in one shape."""

    endpoint: str
    """An HTTP path, or the path of a gRPC method."""
    field: str
    """Its path in the message or the body, for people."""
    shape: Shape
    variant: str
    """What the shape is made of."""
    make: Callable[[int], bytes]
    """Returns the message or the body, of about so many bytes."""
    is_grpc: bool
    is_whole: bool = False
    """True if it is a whole HTTP request, head included."""

    @property
    def name(self) -> str:
        return f"{self.endpoint.rpartition('/')[2]}: {self.field}, {self.shape} ({self.variant})"


LONG = {
    "letters": "a",
    "commas": ",",
    "quotes": '"',
    "braces": "{",
    "spaces": " ",
    "control tokens": "<|im_start|>",
    "astral characters": "😀",
    "combining marks": "e\u0301",
    "NULs": "\0",
    "digits": "7",
    "alternatives": "(a|a)*",
    "template loops": "{% for a in range(9) %}",
}
"""Texts of one thing over and over: what a tokenizer, a regex or a template may be slow at."""
DEEP = {"lists": "[", "objects": '{"a":', "groups": "(", "schemas": '{"items":', "not": '{"not":'}
"""Beginnings of nested things, of which nothing is closed, and which a string can hold."""


def filled(piece: str, num_bytes: int) -> str:
    """Returns a piece repeated to about so many bytes of UTF-8."""
    return piece * max(1, num_bytes // len(piece.encode()))


def chosen(cases: list[Inflated], number: int) -> list[Inflated]:
    """Returns about so many, spread evenly over fields, with shapes and variants in turn."""
    by_field: dict[tuple[str, str], list[Inflated]] = {}
    for case in cases:
        by_field.setdefault((case.endpoint, case.field), []).append(case)
    fields = list(by_field.values())
    rounds, stride = max(1, number // len(fields)), max(1, len(fields) // number)
    return [
        several[turn * len(several) // rounds + place % max(1, len(several) // rounds)]
        for place, several in enumerate(fields)
        if place % stride == 0
        for turn in range(min(rounds, len(several)))
    ]
