"""Turns a growing sequence of token ids into text, whole characters at a time.

There are two ways. A tokenizer whose decoder is byte-level maps each token to fixed bytes, so its
text is an incremental UTF-8 decode: exact, and one table look-up for each token. For any other
decoder the text of a token depends on its neighbours; there a window of the last tokens is decoded
with and without the newest one (the prefix and read offsets of Hugging Face's
text-generation-inference).
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

MAX_PENDING_TOKENS = 8
"""Tokens after which an incomplete character is invalid: a character has at most four bytes."""

MARK = "\ud800"
"""Stands before a token that is a marker, so that its reader tells it from the same text in other
tokens. It is half a surrogate pair, which no text has; readers output none."""
_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The state of one sequence; the concatenated results are the text."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Returns the text that these tokens complete."""
        ...

    def flush(self) -> str:
        """Returns the rest at the end: replacement characters for an incomplete character."""
        ...


class BytesDetokenizer:
    """Detokenises by a table of each token's bytes."""

    __slots__ = ("_incomplete", "_pieces")

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._incomplete = b""
        """The bytes of an incomplete character."""

    def push(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        if len(token_ids) == 1:  # as in nearly every step
            new = pieces[token_ids[0]]
        else:
            new = b"".join([pieces[token_id] for token_id in token_ids])
        data = self._incomplete + new
        text, num_decoded = codecs.utf_8_decode(data, "replace", False)
        self._incomplete = data[num_decoded:]
        return text

    def flush(self) -> str:
        rest, self._incomplete = self._incomplete, b""
        return rest.decode("utf-8", "replace")


class WindowDetokenizer:
    """Detokenises by decoding a short window of the last tokens."""

    __slots__ = ("_decode", "_num_read", "_read_text", "_window")

    def __init__(self, decode: Callable[[list[int]], str], *, context: Sequence[int] = ()) -> None:
        """`context` holds the last tokens before the text, which decide its leading space."""
        self._decode = decode
        self._window = list(context)
        self._mark_read()

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        text = self._decode(self._window)[len(self._read_text) :]
        self._mark_read()
        return text

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        if text == self._read_text:
            if self._decode([token_id, token_id]):  # a space that is dropped at the beginning
                self._mark_read()
            else:  # it has no text, such as a special token
                self._window.pop()
            return ""
        num_pending = len(self._window) - self._num_read
        if text.endswith(_REPLACEMENT) and num_pending < MAX_PENDING_TOKENS:
            return ""
        delta = text[len(self._read_text) :]
        del self._window[: self._num_read]
        self._mark_read()
        return delta

    def _mark_read(self) -> None:
        self._num_read = len(self._window)
        self._read_text = self._decode(self._window)


class MarkingDetokenizer:
    """Puts a MARK before each of some tokens."""

    __slots__ = ("_inner", "_marked")

    def __init__(self, inner: Detokenizer, marked: frozenset[int]) -> None:
        self._inner = inner
        self._marked = marked

    def push(self, token_ids: Sequence[int]) -> str:
        if self._marked.isdisjoint(token_ids):
            return self._inner.push(token_ids)
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._inner.flush()

    def _push_one(self, token_id: int) -> str:
        if token_id not in self._marked:
            return self._inner.push((token_id,))
        before = self._inner.flush()
        text = self._inner.push((token_id,))
        space = text[: len(text) - len(text.lstrip())]  # some decoders put it between tokens
        return before + space + MARK + text[len(space) :]
