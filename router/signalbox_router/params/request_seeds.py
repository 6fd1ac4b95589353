"""Seeds of requests without one, reproducible for routers with the same seed.

A seed is derived from the router's seed, the prompt's tokens, and the number of times that the
prompt came before. So a set of prompts gives the same answers in any order of arrival, and a
repeated prompt is sampled anew, with the same samples as in an earlier run.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

SEED_BYTES = 8
MAX_PROMPTS = 1 << 16
"""Prompts that are remembered; one that was not sent for so many others counts as new."""


class RequestSeeds:
    """Counts prompts by their hash, and derives seeds."""

    def __init__(self, seed: int) -> None:
        """`seed` is in [0, 2**64)."""
        self._seed = seed.to_bytes(SEED_BYTES, "little")
        self._times_seen: OrderedDict[bytes, int] = OrderedDict()

    def next(self, token_ids: Sequence[int]) -> int:
        """Returns the seed of the next request with this prompt, in [0, 2**64)."""
        prompt = blake2b(array("q", token_ids).tobytes(), key=self._seed, digest_size=16).digest()
        times_seen = self._times_seen.pop(prompt, 0)
        self._times_seen[prompt] = times_seen + 1
        if len(self._times_seen) > MAX_PROMPTS:
            self._times_seen.popitem(last=False)
        drawn = blake2b(prompt + times_seen.to_bytes(8, "little"), digest_size=SEED_BYTES)
        return int.from_bytes(drawn.digest(), "little")
