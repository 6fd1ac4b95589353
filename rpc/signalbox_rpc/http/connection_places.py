"""Places for the connections of an HTTP port; decides which one makes room for a new one.

A connection whose request is being answered keeps its place. When all places are taken, a new
client gets the place of the connection that has waited longest for its client (for a request or the
rest of one). So clients that send slowly, or nothing, cannot keep others out.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from signalbox_rpc.http.errors import HttpError

logger = logging.getLogger(__name__)

NO_ROOM = HttpError(503, "the server has too many connections", closes=True, retry_after_s=1)


class NoPlace(Exception):
    """The connection is refused; the message gives the reason in one line."""


@dataclass(eq=False, slots=True)
class Place:
    """The place of one connection."""

    address: str
    """Address of the client without a port; for IPv6, its network."""
    close: Callable[[HttpError], bool]
    """Closes the connection at once with an error. Returns False, and does nothing, if the client
    has yet to read an answer."""


@dataclass(slots=True, kw_only=True)
class Places:
    """The connections of one port."""

    most: int
    most_per_address: int | None = None
    _taken: set[Place] = field(default_factory=set)
    _waiting: dict[Place, None] = field(default_factory=dict)
    """Connections that wait for their clients, the longest wait first."""
    _by_address: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._taken)

    def enter(self, address: str, close: Callable[[HttpError], bool]) -> Place:
        """Returns a place for a connection that waits for its client. Raises NoPlace."""
        if self.most_per_address and self._by_address[address] >= self.most_per_address:
            raise NoPlace(f"{address} has {self.most_per_address} connections, the most for one")
        if len(self._taken) >= self.most and not self._make_room():
            raise NoPlace(f"{self.most} connections are open, the most, and all are answered")
        place = Place(address, close)
        self._taken.add(place)
        self._by_address[address] += 1
        self.wait(place)
        return place

    def wait(self, place: Place) -> None:
        """Marks the connection as waiting for its client."""
        self._waiting.pop(place, None)
        if place in self._taken:
            self._waiting[place] = None

    def answer(self, place: Place) -> None:
        """Marks the connection's request as being answered, so that it keeps its place."""
        self._waiting.pop(place, None)

    def leave(self, place: Place) -> None:
        """Frees the place of a connection that is closed or about to be."""
        self._waiting.pop(place, None)
        if place not in self._taken:
            return
        self._taken.remove(place)
        self._by_address[place.address] -= 1
        if not self._by_address[place.address]:
            del self._by_address[place.address]

    def _make_room(self) -> bool:
        while place := next(iter(self._waiting), None):
            if place.close(NO_ROOM):
                self.leave(place)
                logger.warning(
                    "connection closed to make room: %(address)s had sent no whole request,"
                    " and %(most)d connections, the most, are open",
                    {"address": place.address, "most": self.most},
                )
                return True
            self.answer(place)  # the client has yet to read an answer
        return False
