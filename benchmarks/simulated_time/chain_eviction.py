"""Evicts what sessions have left in the prefix cache, by what each one's prefix is worth.

The last request of a session has left a chain of blocks. The end of the chain that is worth least
goes first. Blocks that several sessions have go as if they were those of the one worth most.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.simulated_time.agent_sessions import Pauses
from benchmarks.simulated_time.event_clock import EventClock
from benchmarks.simulated_time.simulated_pool import BLOCK_SIZE
from signalbox_scheduler.kv.eviction_policy import EvictionPolicy
from signalbox_scheduler.requests.sequence_group import Sequence as RequestSequence


@dataclass(slots=True, eq=False)
class SessionState:
    """What a policy may know of a session."""

    pauses: Pauses | None = None
    """Distribution of the pause that it is in; None while a request of it waits or runs."""
    paused_at: float = 0.0
    next_use: float = 0.0
    """Time of its next request; infinite if there is none."""


Worth = Callable[[SessionState, float], float]


def worth_of_told(state: SessionState, now: float) -> float:
    """Returns what is known by the distributions of the pauses alone."""
    return math.inf if state.pauses is None else state.pauses.worth(now - state.paused_at)


def worth_to_oracle(state: SessionState, _now: float) -> float:
    """Has the prefix that is used last go first (Belady, 1966)."""
    return math.inf if state.pauses is None else -state.next_use


def worth_of_recent(state: SessionState, _now: float) -> float:
    """Has the one that was used longest ago go first, as without a policy, but those for which a
    request waits last."""
    return math.inf if state.pauses is None else state.paused_at


WORTHS: dict[str, Worth] = {
    "recent": worth_of_recent,
    "told": worth_of_told,
    "oracle": worth_to_oracle,
}


@dataclass(slots=True, eq=False)
class _Chain:
    hashes: Sequence[bytes]
    end: int
    """Leading blocks that may be cached."""
    is_spent: bool = False
    """True if others have all that is left."""


class ChainEviction(EvictionPolicy):
    """Chooses by the worth of the sessions whose blocks they are.

    Args:
        states: of the sessions, by the id of each request.
    """

    def __init__(
        self, worth: Worth, states: Mapping[str, SessionState], *, clock: EventClock
    ) -> None:
        self._worth = worth
        self._states = states
        self._clock = clock
        self._chains: dict[SessionState, _Chain] = {}
        self._victim: _Chain | None = None
        self._floor = 0  # leading blocks of the victim that sessions of more worth have
        self._chosen_at = -math.inf

    def note_freed(self, seq: RequestSequence) -> None:
        hashes = seq.block_hashes.get(BLOCK_SIZE, [])[: seq.num_cached_blocks]
        self._chains[self._states[seq.group.request_id]] = _Chain(hashes, len(hashes))
        self._chosen_at = -math.inf  # the victim may be what it goes on from

    def choose(self, cached: Mapping[int, None], block_of: Mapping[bytes, int]) -> int:
        if self._chosen_at != self._clock.now:
            self._choose_chain()
        while (chain := self._victim) is not None:
            while chain.end > self._floor:
                block = block_of.get(chain.hashes[chain.end - 1])
                if block is not None and block in cached:
                    return block
                chain.end -= 1
            chain.is_spent = True
            self._choose_chain()
        return super().choose(cached, block_of)

    def _choose_chain(self) -> None:
        self._chosen_at = now = self._clock.now
        worths = {state: self._worth(state, now) for state in self._chains}
        ranked = sorted(worths, key=worths.__getitem__)
        for rank, state in enumerate(ranked):
            chain = self._chains[state]
            if not chain.is_spent:
                others = (self._chains[other].hashes for other in ranked[rank + 1 :])
                self._floor = max((_num_common(chain.hashes, one) for one in others), default=0)
                self._victim = chain
                return
        self._victim = None


def _num_common(hashes: Sequence[bytes], others: Sequence[bytes]) -> int:
    """Returns how many leading blocks two chains have in common."""
    most = min(len(hashes), len(others))
    return bisect_left(range(most), True, key=lambda row: hashes[row] != others[row])
