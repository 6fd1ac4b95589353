"""The tokenizer of the simulated model: one token a byte, specials for chat, made-up words.

Every id below the vocabulary's size decodes to something, bytes that are no whole character
included, so a router has all its work to do.
"""

import itertools
import json
from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_SEQUENCE = "<|im_end|>"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", END_OF_SEQUENCE)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
END_OF_SEQUENCE_ID = 256 + SPECIAL_TOKENS.index(END_OF_SEQUENCE)

_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_files(*, vocab_size: int, max_model_len: int) -> dict[str, bytes]:
    """Returns tokenizer.json and tokenizer_config.json."""
    vocab = {symbol: i for i, symbol in enumerate(_byte_symbols())}
    for i, word in enumerate(itertools.islice(_words(), vocab_size - MIN_VOCAB_SIZE)):
        vocab[word] = MIN_VOCAB_SIZE + i
    for i, special in enumerate(SPECIAL_TOKENS):
        vocab[special] = 256 + i
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))  # no merges: words only decode
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL_TOKENS])
    config = {
        "chat_template": _CHAT_TEMPLATE,
        "eos_token": END_OF_SEQUENCE,
        "pad_token": SPECIAL_TOKENS[0],
        "model_max_length": max_model_len,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode(),
    }


def _byte_symbols() -> list[str]:
    """Returns the character that stands for each byte in a byte-level vocabulary."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in own)
    code_points = {b: b for b in own} | {b: 256 + i for i, b in enumerate(others)}
    return [chr(code_points[b]) for b in range(256)]


def _words() -> Iterator[str]:
    """Yields different words, each with a space before it ("Ġ" in a byte-level vocabulary)."""
    for length in itertools.count(2):
        for syllables in itertools.product(_SYLLABLES, repeat=length):
            yield "Ġ" + "".join(syllables)
