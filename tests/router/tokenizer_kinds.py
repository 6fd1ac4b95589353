"""Small tokenizers of each kind: by model, and by how they treat spaces and unknown characters."""

import functools
import json
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.router.fakes import make_backend

_TEXT = "The capital of France is Paris, and the cat sat on the mat. The mat, the cat? "
_SPECIAL = ["<unk>", "<s>", "</s>", "<|call|>"]
_BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}


def _trained(model: Any, pre_tokenizer: Any, decoder: Any, trainer: Any, **options: Any) -> Any:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    teacher = trainer(special_tokens=_SPECIAL, show_progress=False, **options)
    tokenizer.train_from_iterator([_TEXT] * 8, teacher)
    return tokenizer


def _with_bytes(tokenizer: Any) -> Any:
    """Returns the tokenizer with a token for each byte, which spells unknown characters."""
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    if isinstance(vocab, list):
        vocab += [(token, -20.0) for token in _BYTES]
    else:
        vocab |= {token: len(vocab) + byte for token, byte in _BYTES.items()}
    state["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(state))


def _sentencepiece(*, with_prefix: bool = True) -> Any:
    """Returns a tokenizer as Gemma's; with a prefix, as those of Llama 2 and Phi-3."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    spaces: list[Any] = [normalizers.Replace(" ", "▁")]
    if with_prefix:
        spaces.insert(0, normalizers.Prepend("▁"))
        steps.append(decoders.Strip(" ", 1, 0))
    model, words = models.BPE(unk_token="<unk>", fuse_unk=True), pre_tokenizers.Metaspace()
    tokenizer = _with_bytes(
        _trained(model, words, decoders.Sequence(steps), trainers.BpeTrainer, vocab_size=90)
    )
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def _metaspace() -> Any:
    """Returns a tokenizer as Mistral's, with a prefix before the first word alone."""
    tokenizer = _sentencepiece()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def _unigram(*, with_bytes: bool) -> Any:
    """Returns a tokenizer as T5's and XLM-RoBERTa's."""
    spaces = pre_tokenizers.Metaspace(), decoders.Metaspace()
    options = {"vocab_size": 80, "unk_token": "<unk>"}
    tokenizer = _trained(models.Unigram(), *spaces, trainers.UnigramTrainer, **options)
    if not with_bytes:
        return tokenizer
    tokenizer = _with_bytes(tokenizer)
    steps = [decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _wordpiece() -> Any:
    model, words = models.WordPiece(unk_token="<unk>"), pre_tokenizers.BertPreTokenizer()
    return _trained(model, words, decoders.WordPiece(), trainers.WordPieceTrainer, vocab_size=80)


def _with_suffixes() -> Any:
    """Returns a tokenizer as GPT-1's and CLIP's, which mark the ends of words."""
    model, words = models.BPE(unk_token="<unk>"), pre_tokenizers.BertPreTokenizer()
    options = {"vocab_size": 120, "end_of_word_suffix": "</w>"}
    return _trained(model, words, decoders.BPEDecoder("</w>"), trainers.BpeTrainer, **options)


def _words() -> Any:
    model, words = models.WordLevel(unk_token="<unk>"), pre_tokenizers.Whitespace()
    return _trained(model, words, None, trainers.WordLevelTrainer)


_KINDS: dict[str, Callable[[], Any]] = {
    "byte-level": make_backend,
    "Llama 2": _sentencepiece,
    "Mistral": _metaspace,
    "Gemma": functools.partial(_sentencepiece, with_prefix=False),
    "Unigram": functools.partial(_unigram, with_bytes=False),
    "Unigram with bytes": functools.partial(_unigram, with_bytes=True),
    "WordPiece": _wordpiece,
    "ends of words": _with_suffixes,
    "words": _words,
}
KINDS = tuple(_KINDS)


@functools.cache
def backend_of(kind: str) -> Any:
    """Returns a `tokenizers.Tokenizer` of one of KINDS."""
    return _KINDS[kind]()
