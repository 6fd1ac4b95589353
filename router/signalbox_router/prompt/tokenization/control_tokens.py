"""Encodes rendered conversations: only text that the template wrote becomes a control token.

A second tokenizer encodes them, made of the same file with a secret spelling for each control
token. Where the template wrote a control token, the secret spelling replaces it in the text; any
other occurrence is plain text to this tokenizer, whose vocabulary has no other spelling. So the
text is encoded in one piece, and one in which only the template wrote control tokens gets the ids
that the model's own tokenizer gives it.
"""

import json
import re
import secrets
from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, models

from signalbox_contract.errors import InvalidArgument
from signalbox_router.prompt.chat.provenance import (
    MODEL,
    TEMPLATE,
    Text,
    plain,
    runs,
    writers_of,
)
from signalbox_router.prompt.tokenization.long_texts import Encoded

MAX_CONTROL_TOKENS = 1 << 18
"""Most control tokens of a conversation: 65,536 turns have four each, and each may make the text
five bytes longer."""
_FIRST, _OTHERS = 0x100000, 0xF0000
_NUM_PRIVATE_USE = 0xFFFE
"""Unicode's private-use characters of planes 16 and 15, which normalizers leave alone."""
_WINDOW_CHARS = 1 << 16
"""Characters of the longest piece of text that is searched for control tokens at once."""
_SHORT_CHARS = 1 << 10
"""Characters of the longest part of a text that is cached, with its control tokens, during a
search."""
_BLOCK_PIECES = 1 << 12
_BYTE = re.compile("<0x[0-9A-F]{2}>")


Encode = Callable[[str, Iterable[int]], Encoded]
"""Encodes a text, and finds the places of certain tokens."""


class _Respelled(NamedTuple):
    """A text in which the control tokens have secret spellings."""

    text: str
    uncertain: dict[int, tuple[int, str]]
    """Number and name of each uncertain token, by its place; the number counts all found tokens."""


class ControlTokens:
    """Encodes texts whose characters have known writers."""

    def __init__(self, tokenizer_json: bytes) -> None:
        settings = json.loads(tokenizer_json)
        added = settings.get("added_tokens") or []
        controls = [token["content"] for token in added if _is_control(token["content"])]
        self._spellings = _secret_spellings(controls)
        self._first = next(iter(self._spellings.values()), "\0")[0]
        self._finders = {
            TEMPLATE: _Finder(added, self._spellings),
            MODEL: _Finder([one for one in added if not one["special"]], self._spellings),
        }
        self._uncertain = {
            one["content"]
            for one in added
            if one["single_word"] or (one["normalized"] and settings.get("normalizer"))
        }
        """Tokens that a tokenizer does not find everywhere in a text."""
        self.file = _respelled(settings, self._spellings)
        """The tokenizer.json of the second tokenizer."""
        self._backend = tokenizers.Tokenizer.from_buffer(self.file)
        self._tokens: dict[int, str] = {
            token_id: token
            for token, spelling in self._spellings.items()
            if (token_id := self._backend.token_to_id(spelling)) is not None
        }

    @property
    def ids(self) -> Collection[int]:
        """Ids of the control tokens."""
        return self._tokens.keys()

    def encode(self, text: Text, encode: Encode | None = None) -> list[int]:
        """Returns token ids. Raises InvalidArgument for too many control tokens.

        Control tokens are recognised in the template's text. In the model's text only those are
        that are not flagged special, because its output shows them.

        Args:
            encode: encodes by the tokenizer of `file`, in another process.
        """
        encode = encode or self._encode
        self._check(plain(text))
        respelled = self._respell(text)
        if not respelled.uncertain:
            return encode(respelled.text, ()).ids
        encoded = encode(respelled.text, self._tokens)
        refused = self._refused(encoded, respelled.uncertain)
        return encode(self._respell(text, refused).text, ()).ids if refused else encoded.ids

    def _check(self, text: str) -> None:
        """Raises InvalidArgument for a text that contains a secret spelling."""
        if self._first in text and any(one in text for one in self._spellings.values()):
            allowed = "text without this process's two private-use characters for a control token"
            raise InvalidArgument("messages", f"a text of {len(text)} characters", allowed)

    def _encode(self, text: str, places: Iterable[int]) -> Encoded:
        wanted = set(places)
        if not wanted:
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
            return Encoded(encoding.ids, [])
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return Encoded(encoding.ids, [(one, *span) for one, span in spans if one in wanted])

    def _respell(self, text: Text, refused: Container[int] = ()) -> _Respelled:
        """Returns the respelled text; tokens whose numbers are `refused` stay as they are."""
        characters = plain(text)
        blocks, pieces, uncertain = [], [], {}
        length = done = 0
        for number, (start, token) in enumerate(self._find(characters, writers_of(text))):
            if number == MAX_CONTROL_TOKENS:
                count = f"a conversation with more than {number} control tokens"
                raise InvalidArgument("messages", count, f"at most {number} when rendered")
            if number in refused:
                continue
            pieces += [characters[done:start], self._spellings[token]]
            if token in self._uncertain:
                uncertain[length + start - done] = (number, token)
            length += start - done + len(pieces[-1])
            done = start + len(token)
            if len(pieces) >= _BLOCK_PIECES:
                blocks.append("".join(pieces))
                pieces.clear()
        return _Respelled("".join([*blocks, *pieces, characters[done:]]), uncertain)

    def _find(self, characters: str, writers: bytes) -> Iterator[tuple[int, str]]:
        """Yields the place and the name of each control token, in order."""
        known: dict[tuple[bytes, str], list[tuple[int, str]]] = {}
        for start, end in merge(runs(writers, MODEL), runs(writers, TEMPLATE)):
            writer = writers[start : start + 1]
            if end - start > _SHORT_CHARS:
                yield from self._finders[writer].find(characters, start, end)
                continue
            run = (writer, characters[start:end])  # templates repeat the same text
            if run not in known:
                known[run] = list(self._finders[writer].find(run[1], 0, end - start))
            yield from ((start + place, token) for place, token in known[run])

    def _refused(self, encoded: Encoded, uncertain: dict[int, tuple[int, str]]) -> set[int]:
        """Returns the numbers of the tokens that the tokenizer did not find."""
        starts = sorted(uncertain)
        refused = {number for number, _ in uncertain.values()}
        for token_id, start, end in encoded.places:
            index = bisect_left(starts, start)  # a token may strip the spaces before it
            if index < len(starts) and starts[index] < end:
                number, token = uncertain[starts[index]]
                if self._tokens[token_id] == token:  # otherwise it is the token for unknown text
                    refused.discard(number)
        return refused


class _Finder:
    """Finds added tokens in texts as a tokenizer does: the first, and the longest at a place."""

    def __init__(self, added: Sequence[Mapping[str, Any]], controls: Container[str]) -> None:
        """Tokens of spaces are matched too, but are not `controls`."""
        self._controls = controls
        self._backend = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        self._backend.add_tokens(
            [
                AddedToken(
                    one["content"], normalized=one["normalized"], single_word=one["single_word"]
                )
                for one in added
            ]
        )
        self._tokens = {self._backend.token_to_id(one["content"]): one["content"] for one in added}
        self._longest = max((len(one["content"]) for one in added), default=0)

    def find(self, text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
        """Yields the place and the name of each control token in a part of the text, in order.

        It searches windows; each starts after the last token found in the one before.
        """
        while start < end:
            border = start + _WINDOW_CHARS
            window = text[start : min(end, border + self._longest)]
            (encoding,) = self._backend.encode_batch([window], add_special_tokens=False)
            behind = border
            for token_id, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
                token = self._tokens.get(token_id)
                if token is not None and start + first < border:
                    behind = max(border, start + last)
                    if token in self._controls:
                        yield start + first, token
            start = behind


def _is_control(token: str) -> bool:
    """Returns whether an added token is more than spaces, and not a byte-fallback token."""
    return bool(token.replace("▁", " ").strip()) and not _BYTE.fullmatch(token)


def _secret_spellings(controls: Iterable[str]) -> dict[str, str]:
    """Returns equally many private-use characters for each token: two, or more for very many
    tokens.

    The first character is the same for all tokens and occurs nowhere else, so that a spelling is
    found in any place, whatever text a client has written before it.
    """
    tokens = list(dict.fromkeys(controls))
    first, offset = (secrets.randbelow(_NUM_PRIVATE_USE) for _ in range(2))
    spellings = {}
    for number, token in enumerate(tokens):
        digits = divmod(number, _NUM_PRIVATE_USE) if len(tokens) > _NUM_PRIVATE_USE else (number,)
        others = (chr(_OTHERS + (digit + offset) % _NUM_PRIVATE_USE) for digit in digits)
        spellings[token] = chr(_FIRST + first) + "".join(others)
    return spellings


def _respelled(settings: dict[str, Any], spellings: Mapping[str, str]) -> bytes:
    """Returns tokenizer.json with other spellings of tokens, which keep their ids.

    Merges into one of these tokens, or out of it, are removed.
    """
    model = dict(settings["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {spellings.get(one, one): number for one, number in model["vocab"].items()}
    else:
        model["vocab"] = [(spellings.get(one, one), score) for one, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = spellings.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        inner = len(model.get("continuing_subword_prefix") or "")
        pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
        model["merges"] = [
            (left, right)
            for left, right in pairs
            if not {left, right, left + right[inner:]} & spellings.keys()
        ]
    added = [
        {**token, "content": spellings.get(token["content"], token["content"])}
        for token in settings.get("added_tokens") or []
    ]
    unused = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    return json.dumps({**settings, **unused, "model": model, "added_tokens": added}).encode()
