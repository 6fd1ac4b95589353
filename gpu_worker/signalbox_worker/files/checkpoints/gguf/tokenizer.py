"""Builds a tokenizer from what a GGUF file says of it.

Byte-level BPE ("gpt2"): the file names its way of cutting text into words; ways that are not known
here are refused, since another one would give other tokens without a word. Sentencepiece ("llama"):
the file has no merges, only scores, from which they follow; Gemma 4's ("gemma4") has them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
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
    strips_after_special: bool = False
    """True if added tokens absorb the white space that follows them, as in Phi-3."""


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(digits: str) -> str:
    """The split of GPT-4's family; models differ in how they cut runs of digits."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _gpt4o(digits: str, contractions: str, *, without: str = "", ends: str = r"\r\n/") -> str:
    """The split of GPT-4o's family: words end where an upper-case letter follows a lower-case.

    Args:
        without: what takes letters out of words' classes.
        ends: characters that a run of signs goes on with.
    """
    lead, upper, lower = (
        r"[^\r\n\p{L}\p{N}]?",
        rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]",
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]",
    )
    return (
        f"{lead}{upper}*{lower}+{contractions}|{lead}{upper}+{lower}*{contractions}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[{ends}]*|{_SPACES}"
    )


_LLAMA3 = (_gpt4(r"\p{N}{1,3}"),)
_QWEN2 = (_gpt4(r"\p{N}"),)
_GPT4O = (_gpt4o(r"\p{N}{1,3}", _CONTRACTIONS + "?"),)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_KIMI = _gpt4o(r"\p{N}{1,3}", f"{_CONTRACTIONS}?", without=r"&&[^\p{Han}]", ends=r"\r\n")
_GLM = ("glm4", "glm5")
_WHOLE_WORDS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
    *("lfm2", "jina-v5-nano"),
)
"""Pre-tokenizers whose words stay whole if they are tokens, whatever the merges are."""
DEFAULT_SPLIT = "default"
"""llama.cpp's pre-tokenizer for files without `tokenizer.ggml.pre`: several splits in sequence."""
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*_WHOLE_WORDS, "dbrx", "smaug-bpe", "chatglm-bpe", *_GLM), _LLAMA3),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"), _QWEN2
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "kimi-k2": (rf"\p{{Han}}+|{_KIMI}",),
    "tekken": (_gpt4o(r"\p{N}", ""),),
    DEFAULT_SPLIT: (
        r"[\p{P}$+<=>^~|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        "[0-9]{3}",
    ),
}
_PLAIN = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion")
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_GEMMA4 = "gemma4"
_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")
_STARTS_WITH_BOS = (*_WHOLE_WORDS, "tekken")


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
    return model in ("llama", _GEMMA4) or pre in _STARTS_WITH_BOS


def build(vocab: GGUFVocab) -> str:
    """Returns tokenizer.json."""
    make = {"llama": _sentencepiece, _GEMMA4: _sentencepiece, "gpt2": _byte_level}.get(vocab.model)
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
    whole_words = vocab.pre in (*_WHOLE_WORDS, *_GLM, "tekken")
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=whole_words))
    if vocab.pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(vocab.pre)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), _template(vocab, ids)]
    )
    return tokenizer


def _pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in _SPLITS:
        splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in _SPLITS[pre]]
        return pre_tokenizers.Sequence(
            [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in _SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if pre in _PLAIN:
        return byte_level
    raise ModelError(
        f"the tokenizer cuts words in a way called {pre!r}, which is not supported; "
        "use a model directory with a tokenizer.json"
    )


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


# ---- both ----


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
