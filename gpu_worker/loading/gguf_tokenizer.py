"""Builds a tokenizer from what a GGUF file says of it, for the byte-level BPE families.

Sentencepiece vocabularies, and splits that are not known here, go through transformers.
"""

from dataclasses import dataclass
from enum import IntEnum

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


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type that matter here."""

    CONTROL = 3
    USER_DEFINED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFVocab:
    """The tokenizer.ggml fields."""

    model: str
    pre: str
    tokens: list[str]
    token_types: list[int]
    merges: list[str]
    bos: str | None
    eos: str | None
    add_bos: bool
    add_eos: bool


def _contractions(digits: str) -> str:
    """The split of the GPT-4 family; models differ in how they cut runs of digits."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_SPLITS = {"llama-bpe": _contractions(r"\p{N}{1,3}"), "qwen2": _contractions(r"\p{N}")}
_PLAIN = ("default", "gpt-2")
_SINGLE_DIGITS = ("smollm",)


def can_build(vocab: GGUFVocab) -> bool:
    """Says whether `build` knows this kind."""
    return vocab.model == "gpt2" and vocab.pre in (*_SPLITS, *_PLAIN, *_SINGLE_DIGITS)


def build(vocab: GGUFVocab) -> str:
    """Returns tokenizer.json."""
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in vocab.merges)]
    ids = {token: index for index, token in enumerate(vocab.tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=merges, ignore_merges=vocab.pre == "llama-bpe")
    )
    if vocab.pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(vocab.pre)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(vocab, ids)
    _add_tokens(tokenizer, vocab)
    return str(tokenizer.to_str())


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in _SPLITS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return byte_level


def _post_processor(vocab: GGUFVocab, ids: dict[str, int]) -> processors.PostProcessor:
    parts = ["$A"]
    if vocab.add_bos and vocab.bos is not None:
        parts.insert(0, vocab.bos)
    if vocab.add_eos and vocab.eos is not None:
        parts.append(vocab.eos)
    special = [(token, ids[token]) for token in dict.fromkeys(parts) if token != "$A"]
    return processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=parts, special_tokens=special),
        ]
    )


def _add_tokens(tokenizer: Tokenizer, vocab: GGUFVocab) -> None:
    typed = list(zip(vocab.tokens, vocab.token_types, strict=True))
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in typed
            if kind == TokenType.CONTROL
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in typed
            if kind == TokenType.USER_DEFINED
        ]
    )
