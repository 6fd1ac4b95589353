"""Chooses the scheduler of a session's requests, so that a turn finds the prefix of the last one.

The router remembers where it sent a session last. A session that it does not know goes to the
scheduler of the greatest hash of session and address (rendezvous hashing: Thaler, Ravishankar,
1998). So routers that know the schedulers by the same addresses choose the same one without
talking, and if a scheduler is lost, the sessions of the others stay where they are.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from math import inf
from typing import NamedTuple, Protocol, TypeVar

MAX_REMEMBERED = 16_384
"""Sessions whose last scheduler is known, about 4 MB."""
SPARE_REQUESTS = 4
LOAD_RATIO = 1.5


class Destination(Protocol):
    """A scheduler that takes requests."""

    address: str

    @property
    def num_live(self) -> int: ...


class ModelSession(NamedTuple):
    """A session of one model: a client may use several in a session."""

    model: str
    session: bytes


D = TypeVar("D", bound=Destination)


class SessionRoutes:
    """The schedulers that sessions went to last."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._last: OrderedDict[ModelSession, str] = OrderedDict()

    def choose(self, session: ModelSession, schedulers: Sequence[D]) -> D:
        """Returns one of the schedulers for a session's next request, and remembers it.

        One with clearly more live requests of this router than the least loaded one is passed over
        (bounded loads: Mirrokni, Thorup and Zadimoghaddam, SODA 2018): more than LOAD_RATIO times
        as many, and SPARE_REQUESTS. That bound is on the least load and not on the mean, which of
        two schedulers says too little.
        """
        last, least, known = self._last.get(session), inf, None
        for one in schedulers:
            least = min(least, one.num_live)
            if one.address == last:
                known = one
        most = LOAD_RATIO * least + SPARE_REQUESTS
        if known is not None and known.num_live <= most:
            self._last.move_to_end(session)
            return known
        roomy = (one for one in schedulers if one.num_live <= most)
        chosen = max(roomy, key=lambda one: _weight(session.session, one.address))
        self._remember(session, chosen.address)
        return chosen

    def _remember(self, session: ModelSession, address: str) -> None:
        self._last[session] = address
        self._last.move_to_end(session)
        if len(self._last) > self._max_remembered:
            self._last.popitem(last=False)

    def __len__(self) -> int:
        return len(self._last)


def _weight(session: bytes, address: str) -> bytes:
    return blake2b(session + address.encode(), digest_size=8).digest()
