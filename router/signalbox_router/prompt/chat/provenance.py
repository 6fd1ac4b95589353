"""Strings that record the writer of each character: the template, the model or the client.

A chat template mixes its own text with a client's. Only text that the template wrote may become a
control token, so its strings are `Text` while it renders, and results of string operations are too.
The characters of a result are those of `str`; a `Text` with the same characters behaves as `str`.

Unknown provenance is treated as untrusted. A plain `str` counts as the client's, and so does the
result of an operation that this module does not know. An operation that it knows but cannot follow
character by character, such as `center`, counts as written by the least trusted of its inputs.
Numbers count as the template's: digits alone are not a control token. Like `template_sandbox`, the
module imports nothing of ours.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

CLIENT, MODEL, TEMPLATE = b"0", b"1", b"2"
"""Writers, the least trusted first: the API's client, the model in an assistant's turn, and the
template (or this server)."""

_NEUTRAL = (int, float, type(None))


class Text(str):
    """A string and the writer of each of its characters."""

    __slots__ = ("_writers",)
    _writers: bytes

    def __new__(cls, value: str = "", writers: bytes | None = None) -> "Text":
        """`writers` has one byte for each character; None means the client wrote all of them."""
        text = str.__new__(cls, value)
        text._writers = CLIENT * len(value) if writers is None else writers
        return text

    def __str__(self) -> str:
        return self  # Jinja's filters call `str(text)`, which must keep the writers

    def __getitem__(self, key: Any) -> "Text":
        value = str.__getitem__(self, key)
        writers = self._writers[key]
        return Text(value, writers if isinstance(writers, bytes) else bytes((writers,)))

    def __iter__(self) -> Iterator["Text"]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: Any) -> "Text":
        if type(other) is not str and not isinstance(other, Text):
            return NotImplemented  # Markup escapes what it is added to; other types raise
        return concat((self, other))

    def __radd__(self, other: Any) -> "Text":
        return concat((other, self)) if type(other) is str else NotImplemented

    def __mul__(self, count: Any) -> "Text":
        if not isinstance(count, int):
            return NotImplemented
        return Text(str.__mul__(self, count), self._writers * count)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> "Text":
        return uniform(str.__mod__(self, values), self, values)

    def join(self, values: Iterable[str]) -> "Text":
        values = list(values)
        str.join(self, values)  # raises for what is no string
        parts = [part for value in values for part in (self, value)]
        return concat(parts[1:])

    def strip(self, chars: str | None = None) -> "Text":
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> "Text":
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> "Text":
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str) -> "Text":
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str) -> "Text":
        return self[: len(str.removesuffix(self, suffix))]

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[Any]:
        parts = str.split(self, sep, maxsplit)
        if sep is not None:
            return self._parts(parts, gap=len(sep))
        texts, end = [], 0
        for part in parts:  # the first character after a gap is no space, as a part's first
            start = str.find(self, part, end)
            end = start + len(part)
            texts.append(self[start:end])
        return texts

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> list[Any]:
        parts = str.rsplit(self, sep, maxsplit)
        if sep is not None:
            return self._parts(parts, gap=len(sep))
        return [uniform(part, self) for part in parts]

    def splitlines(self, keepends: bool = False) -> list[Any]:
        texts = self._parts(str.splitlines(self, True), gap=0)
        lines = str.splitlines(self, keepends)
        return [text[: len(line)] for text, line in zip(texts, lines, strict=True)]

    def partition(self, sep: str) -> Any:
        return tuple(self._parts(str.partition(self, sep), gap=0))

    def rpartition(self, sep: str) -> Any:
        return tuple(self._parts(str.rpartition(self, sep), gap=0))

    def replace(self, old: str, new: str, count: Any = -1) -> "Text":
        value = str.replace(self, old, new, count)
        if not old:
            return uniform(value, self, new)
        return text_of(new).join(self.split(old, count))

    def _parts(self, parts: Iterable[str], *, gap: int) -> list[Any]:
        """Returns consecutive parts of this text, with `gap` characters in between."""
        texts, start = [], 0
        for part in parts:
            texts.append(self[start : start + len(part)])
            start += len(part) + gap
        return texts


def _one_to_one(name: str) -> Callable[..., Text]:
    """Returns a method that changes characters one by one; a few may become several."""
    method = getattr(str, name)

    @functools.wraps(method)
    def call(self: Text) -> Text:
        value = method(self)
        return Text(value, self._writers) if len(value) == len(self) else uniform(value, self)

    return call


def _unfollowed(name: str) -> Callable[..., Text]:
    method = getattr(str, name)

    @functools.wraps(method)
    def call(self: Text, *args: Any) -> Text:
        return uniform(method(self, *args), self, *args)

    return call


for _name in ("upper", "lower", "casefold", "capitalize", "title", "swapcase"):
    setattr(Text, _name, _one_to_one(_name))
for _name in ("center", "ljust", "rjust", "zfill", "translate"):
    setattr(Text, _name, _unfollowed(_name))


def writers_of(text: str) -> bytes:
    return text._writers if isinstance(text, Text) else CLIENT * len(text)


def runs(writers: bytes, writer: bytes) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each run of one writer's characters.

    Searching for a pattern takes 0.1 us for each character in between, and keeps the interpreter's
    lock throughout; `bytes.find` only scans memory.
    """
    run = re.compile(re.escape(writer) + b"+")
    start = writers.find(writer)
    while start >= 0 and (match := run.match(writers, start)):
        yield match.span()
        start = writers.find(writer, match.end())


def plain(text: str) -> str:
    """Returns the characters alone."""
    return str.__str__(text)


def written_by(writer: bytes, value: str) -> Text:
    """Returns a text of one writer."""
    return Text(value, writer * len(value))


def text_of(value: object) -> Text:
    """Returns the text of any value, as `str(value)` does."""
    return value if isinstance(value, Text) else uniform(str(value), value)


def uniform(value: str, *inputs: object) -> Text:
    """Returns a text written by the least trusted writer of the inputs."""
    return written_by(_least_trusted(inputs), value)


def concat(values: Iterable[object]) -> Text:
    """Returns the concatenated texts of all values."""
    texts = [text_of(value) for value in values]
    if len(texts) == 1:
        return texts[0]
    return Text("".join(texts), b"".join([text._writers for text in texts]))


def marked(value: object, writer: bytes) -> Any:
    """Returns a copy of JSON data in which all strings, including keys, have this writer."""
    root = {None: value}
    todo: list[tuple[Any, Any]] = [(root, None)]
    while todo:  # data may be nested deeper than the call stack
        parent, key = todo.pop()
        child = parent[key]
        if type(child) is str:
            parent[key] = written_by(writer, child)
        elif type(child) is dict:
            copy = {
                written_by(writer, name) if type(name) is str else name: one
                for name, one in child.items()
            }
            parent[key] = copy
            todo += [(copy, name) for name in copy]
        elif type(child) is list:
            parent[key] = items = list(child)
            todo += [(items, i) for i in range(len(items))]
    return root[None]


def has_text(*values: object) -> bool:
    """Returns whether a value, or an item in its lists and dictionaries, is a `Text`."""
    return any(isinstance(leaf, Text) for leaf in _leaves(values))


def _least_trusted(values: Iterable[object]) -> bytes:
    least = TEMPLATE
    for leaf in _leaves(values):
        if isinstance(leaf, Text):
            least = min(least, next((w for w in (CLIENT, MODEL) if w in leaf._writers), TEMPLATE))
        elif not isinstance(leaf, _NEUTRAL):
            return CLIENT
        if least == CLIENT:
            break
    return least


def _leaves(values: Iterable[object]) -> Iterator[object]:
    todo = list(values)
    while todo:
        value = todo.pop()
        if type(value) is dict:
            todo += [*value.keys(), *value.values()]
        elif type(value) in (list, tuple):
            todo += value  # type: ignore[arg-type]
        else:
            yield value
