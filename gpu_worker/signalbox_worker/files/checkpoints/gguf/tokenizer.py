"""Builds a tokenizer from what a GGUF file says of it.

Byte-level BPE ("gpt2"): the file names its way of cutting text into words; ways that are not known
here are refused, since another one would give other tokens without a word. Sentencepiece ("llama"):
the file has no merges, only scores, from which they follow; Gemma 4's ("gemma4") has them.
WordPiece ("bert"): words begin with the mark of Sentencepiece's spaces, in place of the others with
##.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from signalbox_worker.config import ModelError


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type that matter here."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFVocab:
    """The tokenizer.ggml fields."""

    model: str
    pre: str
    tokens: list[str]
    """All different: see `distinct_tokens`."""
    token_types: list[int]
    merges: list[str]
    bos: str | None
    eos: str | None
    add_bos: bool
    add_eos: bool
    unk: str | None = None
    scores: list[float] = field(default_factory=list)
    add_space_prefix: bool = True
    lowercase: bool = True
    strip_accents: bool = True
    strips_after_special: bool = False
    """True if added tokens absorb the white space that follows them, as in Phi-3."""


TABLE = Path(__file__).with_name("pre_tokenizers.json")
"""Ways to cut words, of llama.cpp (scripts/pre_tokenizers.py)."""
DEFAULT_SPLIT = "default"
"""llama.cpp's pre-tokenizer for files without `tokenizer.ggml.pre`: several splits in sequence."""
_USUAL_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
"""Expression whose pieces the library's ByteLevel cuts by itself, which is faster."""
_DIGIT = r"\p{N}"
_GEMMA4 = "gemma4"
_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")


@dataclass(frozen=True, slots=True)
class _Words:
    """A way to cut text into words."""

    splits: tuple[str, ...]
    """Expressions; each cuts what those before it have left whole."""
    keeps_words: bool = False
    """True if words stay whole if they are tokens, whatever the merges are."""
    adds_bos: bool = False


def _kimi() -> _Words:
    """Runs of Han are words, and no letters of others; llama.cpp has code for it."""
    lead, upper, lower = (
        r"[^\r\n\p{L}\p{N}]?",
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    )
    contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    letters = f"{lead}{upper}*{lower}+{contractions}|{lead}{upper}+{lower}*{contractions}"
    signs = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return _Words((rf"\p{{Han}}+|{letters}|{signs}",))


@cache
def _ways() -> Mapping[str, _Words]:
    """Returns the ways to cut words by their names in `tokenizer.ggml.pre`."""
    ways = {
        name: _Words(tuple(way["splits"]), way["keeps_words"], way["adds_bos"])
        for way in json.loads(TABLE.read_text(encoding="utf-8"))
        for name in way["names"]
    }
    return ways | {"kimi-k2": _kimi()}


def _split(expression: str) -> pre_tokenizers.PreTokenizer:
    if expression == _DIGIT:  # faster
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(expression), "isolated")


def _words(pre: str) -> _Words:
    if pre not in _ways():
        raise ModelError(
            f"the tokenizer cuts words in a way called {pre!r}, which is not supported; "
            "use a model directory with a tokenizer.json"
        )
    return _ways()[pre]


_DIGITS = "".join(chr(0xFDD0 + digit) for digit in range(16))
"""Noncharacters of Unicode, which no text has."""
_AS_DIGITS = str.maketrans("0123456789abcdef", _DIGITS)
_NUMBER = Regex(f"[{_DIGITS}]+")
_SPECIAL_TYPES = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)


def distinct_tokens(
    tokens: Sequence[str], token_types: Sequence[int], *, named: Collection[int | None]
) -> list[str]:
    """Returns tokens that all differ, since tokenizer.json holds them by their text.

    Of tokens with one text, text is encoded as a named one, else a special one, else the last, as
    llama.cpp does. The others get their number in digits that the decoder removes.
    """
    if len(set(tokens)) == len(tokens):
        return list(tokens)
    order = sorted(
        range(len(tokens)), key=lambda one: (one in named, token_types[one] in _SPECIAL_TYPES, one)
    )
    encoded = {tokens[one]: one for one in order}
    return [
        token if encoded[token] == one else token + f"{one:x}".translate(_AS_DIGITS)
        for one, token in enumerate(tokens)
    ]


def text_of(token: str) -> str:
    """Returns the text of one of `distinct_tokens`."""
    return token.rstrip(_DIGITS)


def adds_bos(*, model: str, pre: str) -> bool:
    """Returns whether a file without this entry adds a BOS token."""
    return model in ("llama", _GEMMA4) or (pre in _ways() and _ways()[pre].adds_bos)


def build(vocab: GGUFVocab) -> str:
    """Returns tokenizer.json."""
    make = _MAKERS.get(vocab.model)
    if make is None:
        raise ModelError(
            f"tokenizers of kind {vocab.model!r} are not supported in GGUF files; "
            "use a model directory with a tokenizer.json"
        )
    try:
        tokenizer = make(vocab)
        _add_tokens(tokenizer, vocab)
        if any(token != text_of(token) for token in vocab.tokens):
            steps = [decoders.Replace(_NUMBER, ""), tokenizer.decoder]
            tokenizer.decoder = decoders.Sequence(steps)
    except ModelError:
        raise
    except Exception as error:  # the library raises no narrower type
        raise ModelError(f"the tokenizer is damaged ({error}); fetch the file again") from None
    return str(tokenizer.to_str())


# ---- byte-level BPE ----


def _byte_level(vocab: GGUFVocab) -> Tokenizer:
    merges, ids = _merges(vocab), _ids(vocab)
    words = _words(vocab.pre)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=words.keeps_words))
    if vocab.pre in ("qwen2", "qwen35"):
        tokenizer.normalizer = normalizers.NFC()
    ends_usually = words.splits[-1] == _USUAL_SPLIT
    splits = words.splits[:-1] if ends_usually else words.splits
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=ends_usually)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*map(_split, splits), to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), _template(vocab, ids)]
    )
    return tokenizer


# ---- sentencepiece ----


def _sentencepiece(vocab: GGUFVocab) -> Tokenizer:
    ids = _ids(vocab)
    merges = _merges(vocab) if vocab.model == _GEMMA4 else _merges_of_scores(vocab, ids)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=merges,
            unk_token=vocab.unk,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    # Each stretch between special tokens begins with the prefix, whatever it begins with itself.
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    if vocab.add_space_prefix:
        spaces.insert(0, normalizers.Prepend("▁"))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocab.add_space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = _template(vocab, ids)
    return tokenizer


def _merges(vocab: GGUFVocab) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (one.partition(" ") for one in vocab.merges)]


def _merges_of_scores(vocab: GGUFVocab, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best token first.

    Sentencepiece joins the neighbours whose result scores best; BPE those whose rule comes first.
    """
    if len(vocab.scores) != len(vocab.tokens):
        raise ModelError("the GGUF file's tokenizer has no scores; fetch another file")
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    typed = zip(vocab.tokens, vocab.scores, vocab.token_types, strict=True)
    for token, score, kind in typed:
        if kind != TokenType.NORMAL:
            continue
        parts = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(left, right) for left, right in parts if left in ids and right in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        ranked += [(-score, -len(left), -len(right), (left, right)) for left, right in pairs]
    ranked.sort(key=lambda entry: entry[:3])
    return [pair for *_, pair in ranked]


# ---- WordPiece ----


def _word_piece(vocab: GGUFVocab) -> Tokenizer:
    if vocab.bos is None or vocab.eos is None or vocab.unk is None:
        raise ModelError("the GGUF file's tokenizer lacks its special tokens; fetch another file")
    named = {vocab.bos, vocab.eos, vocab.unk}
    typed = zip(vocab.tokens, vocab.token_types, strict=True)
    ids = {
        token if kind in _SPECIAL_TYPES or token in named else _piece(token): index
        for index, (token, kind) in enumerate(typed)
    }
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token=vocab.unk))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=vocab.lowercase, strip_accents=vocab.strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    first, last = vocab.bos, vocab.eos
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, ids[token]) for token in dict.fromkeys((first, last))],
    )
    return tokenizer


def _piece(token: str) -> str:
    return token.removeprefix("▁") if token.startswith("▁") else f"##{token}"


# ---- all ----


def _ids(vocab: GGUFVocab) -> dict[str, int]:
    return {token: index for index, token in enumerate(vocab.tokens)}


def _template(vocab: GGUFVocab, ids: dict[str, int]) -> processors.PostProcessor:
    parts = ["$A"]
    if vocab.add_bos and vocab.bos is not None:
        parts.insert(0, vocab.bos)
    if vocab.add_eos and vocab.eos is not None:
        parts.append(vocab.eos)
    special = [(token, ids[token]) for token in dict.fromkeys(parts) if token != "$A"]
    return processors.TemplateProcessing(single=parts, special_tokens=special)


def _takes_space(vocab: GGUFVocab, token: str) -> bool:
    return vocab.strips_after_special and token not in _KEEPS_SPACE


def _add_tokens(tokenizer: Tokenizer, vocab: GGUFVocab) -> None:
    typed = list(zip(vocab.tokens, vocab.token_types, strict=True))
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, rstrip=_takes_space(vocab, token))
            for token, kind in typed
            if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False, rstrip=_takes_space(vocab, token))
            for token, kind in typed
            if kind == TokenType.USER_DEFINED
        ]
    )


_MAKERS: Mapping[str, Callable[[GGUFVocab], Tokenizer]] = {
    "bert": _word_piece,
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    _GEMMA4: _sentencepiece,
}
"""Functions by the names of kinds of tokenizers."""
