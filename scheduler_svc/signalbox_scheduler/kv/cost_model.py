"""Compares the cost of copies between the pools with that of computing the same tokens again.

Begins with the rates that a worker announces and follows those that its answers show, each by how
much it copied or computed: a copy of one block, or a short prompt, says little. Choosing by bytes
over bandwidth against tokens over prefill rate follows vLLM (SOSP 2023, section 4.5).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from signalbox_rpc.metrics.sample import Sample, gauge

MIN_PREFILL_TOKENS = 32  # smaller steps say nothing of the rate of a prefill
PREFILL_WINDOW_TOKENS = 1024  # as much as is known before weighs as much as so many tokens
COPY_WINDOW_BLOCKS = 64
LOAD_LATENCY_S = 0.005
"""Time that a lookup in the store and a fetch take beside the bytes: steps of which the results
bring their ends."""
FAR_OFF = 2
"""Factor by which a fetch has to miss its time for its rate to count half."""
MOST_AT_ONCE = 4  # a step that takes ten times as long was kept from its core, more likely
HIT_SHARE = 1 / 16
"""Evicted blocks are kept if one hit in so many pays for them all, so keeping them takes at most
this share of the time that their tokens took to compute."""
MAX_KEEP_S = 0.005
"""Longest that a step may take for the copies of evicted blocks, and of those of one write or
export: others wait for their tokens. One block of a write or export is always copied: a rate that
was measured too low would end both for good, since only copies correct it."""
MAX_EXPORT_SHARE = 1 / 16
"""Share of a step that those of one export may take if that is longer. The parts of an export wait
for steps of both workers: beside steps of half a second a drain that copies 5 ms of blocks at a
time would not end."""
MAX_SPARE_SHARE = 1 / 10
"""Most of a step that copies of an export that is not urgent may take."""


@dataclass(slots=True, kw_only=True)
class CostModel:
    """One worker's rates; 0 is not known yet, and what is not known costs nothing."""

    block_bytes: int = 0
    copy_bytes_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    load_bytes_per_s: float = 0.0
    """Rate at which blocks come from the worker's store to the CPU pool."""
    peer_bytes_per_s: float = 0.0
    """Rate at which they come from other workers."""
    last_decode_s: float = field(default=0.0, init=False)
    """Duration of the last step that only decoded, which grows with the contexts."""
    _num_decoded: int = field(default=0, init=False)
    """Sequences of that step."""
    has_seen_swaps: bool = field(default=False, init=False)
    """True if the rate of copies may differ from the announced one."""
    _announced_copy_bytes_per_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._announced_copy_bytes_per_s = self.copy_bytes_per_s

    def samples(self) -> Iterator[Sample]:
        yield gauge(
            "copy_bytes_per_second",
            "Rate of copies between the pools, announced and then followed; 0 is not known.",
            self.copy_bytes_per_s,
        )
        yield gauge(
            "prefill_tokens_per_second",
            "Rate at which prompts are computed, announced and then followed; 0 is not known.",
            self.prefill_tokens_per_s,
        )

    def prefers_swap(self, *, num_blocks: int, num_tokens: int) -> bool:
        """Says whether copying blocks out and in takes less than computing their tokens again."""
        return 2 * self.copy_s(num_blocks) <= self.recompute_s(num_tokens)

    def fetches(self, *, block_size: int) -> bool:
        """Says whether to copy a block in takes less than to compute its tokens again."""
        return self.copy_s(1) <= self.recompute_s(block_size)

    def keeps_more(self, num_blocks: int, *, num_kept: int, block_size: int) -> bool:
        """Says whether a step that copies `num_kept` evicted blocks out should copy so many more:
        one, or a state, which is worth as much a block and is never too large to be the first."""
        saved_s = self.recompute_s(block_size) - self.copy_s(1)
        if self.copy_s(1) > HIT_SHARE * saved_s:
            return False
        is_first = num_blocks > 1 and not num_kept
        return is_first or self.copy_s(num_kept + num_blocks) <= MAX_KEEP_S

    def is_less(self, seconds: float, *, num_tokens: int) -> bool:
        """Says whether a time is less than tokens take to compute."""
        return not self.prefill_tokens_per_s or seconds <= self.recompute_s(num_tokens)

    def load_s(self, num_blocks: int, *, from_peer: bool = False) -> float:
        """Seconds until blocks of the store, or another worker, are on the GPU."""
        rate = self.load_rate(from_peer=from_peer)
        read_s = num_blocks * self.block_bytes / rate if rate else 0.0
        return LOAD_LATENCY_S + read_s + self.copy_s(num_blocks)

    def load_rate(self, *, from_peer: bool) -> float:
        """Bytes per second that come from the store, or from another worker."""
        return self.peer_bytes_per_s if from_peer else self.load_bytes_per_s

    def keeps_more_copies(
        self, *, num_copies: int, step_s: float = 0.0, is_urgent: bool = True
    ) -> bool:
        """Says whether a step that copies blocks out for one purpose should copy one more.

        Args:
            step_s: of steps that the purpose waits for; 0 if nothing waits for it.
            is_urgent: False if the purpose is that steps get shorter.
        """
        most_s = max(MAX_KEEP_S, MAX_EXPORT_SHARE * step_s)
        if not is_urgent:
            most_s = min(most_s, MAX_SPARE_SHARE * step_s)
        return not num_copies or self.copy_s(num_copies + 1) <= most_s

    def copy_s(self, num_blocks: int) -> float:
        """Seconds to copy blocks from one pool to the other."""
        rate = self.copy_bytes_per_s
        return num_blocks * self.block_bytes / rate if rate else 0.0

    def recompute_s(self, num_tokens: int) -> float:
        return num_tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0

    def decode_s(self, num_seqs: int) -> float:
        """Returns how long a step of so many sequences takes at least, by the last that decoded.

        One of fewer sequences takes less, in proportion at most.
        """
        return self.last_decode_s * min(1.0, num_seqs / max(1, self._num_decoded))

    def observe_decode(self, *, num_seqs: int, seconds: float) -> None:
        """Takes the duration of a step that was answered and only decoded."""
        self.last_decode_s, self._num_decoded = seconds, num_seqs

    def observe_prefill(self, *, num_seqs: int, num_tokens: int, forward_ns: int) -> None:
        """Follows the rate of a step that was answered, if it was a prefill for the most part."""
        # A prefill of any size beside it, a decode reads all weights for one token.
        if forward_ns and num_tokens >= max(MIN_PREFILL_TOKENS, 8 * num_seqs):
            self.prefill_tokens_per_s = _follow(
                self.prefill_tokens_per_s,
                num_tokens / forward_ns * 1e9,
                weight=num_tokens / (num_tokens + PREFILL_WINDOW_TOKENS),
            )

    def observe_swaps(self, *, num_blocks: int, num_copies: int, swap_ns: int) -> None:
        """Follows the rate at which a step that was answered copied blocks from pool to pool.

        Args:
            num_copies: copies within the GPU pool, whose time is in `swap_ns` too.
        """
        self.has_seen_swaps = True
        if swap_ns and not num_copies:
            self.copy_bytes_per_s = _follow(
                self.copy_bytes_per_s,
                num_blocks * self.block_bytes / swap_ns * 1e9,
                weight=num_blocks / (num_blocks + COPY_WINDOW_BLOCKS),
            )

    def observe_load(
        self, *, num_bytes: int, seconds: float, is_whole: bool = True, from_peer: bool = False
    ) -> None:
        """Follows the rate of a fetch from the store, or another worker.

        One that is far from the known rate counts half, so that few are begun that do not pay.

        Args:
            is_whole: False of a fetch that failed or was called off, which shows at most that it
                was slow: one more block had not come.
        """
        known = self.load_rate(from_peer=from_peer)
        num_bytes += 0 if is_whole else self.block_bytes
        expected_s = num_bytes / known if known else 0.0
        is_slow = seconds > FAR_OFF * (LOAD_LATENCY_S + expected_s)
        if not (num_bytes and seconds and self.block_bytes and (is_whole or is_slow)):
            return
        num_blocks, seen = num_bytes / self.block_bytes, num_bytes / seconds
        weight = num_blocks / (num_blocks + COPY_WINDOW_BLOCKS)
        if is_slow or seconds * FAR_OFF < expected_s:
            rate = _mean(known, seen, weight=max(weight, 1 / 2))
        else:
            rate = _follow(known, seen, weight=weight)
        if from_peer:
            self.peer_bytes_per_s = rate
        else:
            self.load_bytes_per_s = rate

    def forget_swaps(self) -> None:
        """Lets the announced rate of copies hold again."""
        self.copy_bytes_per_s = self._announced_copy_bytes_per_s
        self.has_seen_swaps = False


def _follow(known: float, seen: float, *, weight: float) -> float:
    """Returns the mean of a rate and one that was seen; far from the first, that says little."""
    if known and seen:
        seen = min(max(seen, known / MOST_AT_ONCE), known * MOST_AT_ONCE)
    return _mean(known, seen, weight=weight)


def _mean(known: float, seen: float, *, weight: float) -> float:
    """Returns the geometric mean: a rate that is ten times off either way is left as fast."""
    return known * math.pow(seen / known, weight) if known and seen else seen
