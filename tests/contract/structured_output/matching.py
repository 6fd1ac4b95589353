"""What compiled constraints admit, by a tokenizer of single bytes."""

import random

from llguidance import LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from signalbox_contract.structured_output.grammar import _Bytes, compile_grammar

TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257)


def admits(constraint: tuple[str, ...], text: str) -> bool:
    matcher = compile_grammar(constraint, TOKENIZER)
    return all(map(matcher.consume_token, text.encode())) and matcher.is_accepting()


def walk(constraint: tuple[str, ...], rng: random.Random, *, max_bytes: int = 3000) -> str | None:
    """Returns a text that the masks admit, or None if it does not end."""
    matcher = compile_grammar(constraint, TOKENIZER)
    words = allocate_token_bitmask(1, 257)
    text = bytearray()
    while len(text) < max_bytes:
        if matcher.is_accepting() and (matcher.is_stopped() or rng.random() < 0.5):
            return text.decode(errors="replace")
        fill_next_token_bitmask(matcher, words)
        allowed = [i for i in range(256) if words[0][i // 32] >> (i % 32) & 1]
        if not allowed:
            break
        printable = [i for i in allowed if 32 <= i < 127] or allowed
        closing = [i for i in printable if i in b'"]}'] if len(text) > max_bytes // 4 else []
        byte = rng.choice(closing or printable)
        assert matcher.consume_token(byte)
        text.append(byte)
    return text.decode(errors="replace") if matcher.is_accepting() else None
