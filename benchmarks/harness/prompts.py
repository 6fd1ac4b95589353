"""Prompts of random tokens."""

from collections.abc import Iterator

import numpy as np


def random_prompts(*, vocab_size: int, num_tokens: int, seed: int = 0) -> Iterator[list[int]]:
    """Yields prompts of one length for ever; those of another seed or length are others.

    So a short prompt is not the beginning of a long one.
    """
    rng = np.random.default_rng((seed, num_tokens))
    while True:
        yield rng.integers(0, vocab_size, num_tokens).tolist()
