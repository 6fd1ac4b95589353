"""Predicts whether a fetch, from a store or from other workers, takes less than to compute."""

import math

from signalbox_scheduler.kv.cost_model import CostModel

RETRY_S = 60.0
"""Time after which one fetch is begun that should not pay, as what made it slow may be over."""


class FetchCost:
    """The times of one worker's fetches from one place.

    Args:
        from_peers: whether the place is other workers, and not the worker's store.
    """

    def __init__(self, cost: CostModel, *, from_peers: bool) -> None:
        self._cost = cost
        self._from_peers = from_peers
        self._begun_at = math.inf

    def predict(
        self, num_blocks: int, now: float, *, num_tokens: int, wait_s: float = 0.0
    ) -> float | None:
        """Returns the seconds until blocks are on the GPU; None if to compute them takes less.

        Args:
            num_tokens: tokens that they hold.
            wait_s: seconds until the fetch can begin.
        """
        load_s = wait_s + self._cost.load_s(num_blocks, from_peer=self._from_peers)
        if self._cost.is_less(load_s, num_tokens=num_tokens):
            return load_s
        if now < self._begun_at + RETRY_S:
            return None
        least_s = wait_s + self._cost.load_s(0)
        return least_s if self._cost.is_less(least_s, num_tokens=num_tokens) else None

    def longest_s(self, num_tokens: int, load_s: float) -> float:
        """Returns the seconds that a fetch of so many tokens may take which should take `load_s`.

        One of an unknown rate may take as long as its tokens take to compute.
        """
        longest_s = 2 * load_s
        if not self._cost.load_rate(from_peer=self._from_peers):
            longest_s = max(longest_s, self._cost.recompute_s(num_tokens))
        return longest_s

    def begin(self, now: float) -> None:
        """Records that a fetch begins."""
        self._begun_at = now
