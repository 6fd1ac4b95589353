"""Slots for the connections of an HTTP port; decides which one makes room for a new one.

A connection whose request is being answered keeps its slot. When all slots are taken, a new
client gets the slot of the connection that has waited longest for its client (for a request or the
rest of one). So clients that send slowly, or nothing, cannot keep others out.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from signalbox_rpc.http.errors import HttpError

logger = logging.getLogger(__name__)

NO_ROOM = HttpError(503, "the server has too many connections", closes=True, retry_after_s=1)


class NoFreeSlot(Exception):
    """The connection is refused; the message gives the reason in one line."""


class SlotHolder(Protocol):
    """A connection, or what makes one."""

    def vacate(self, error: HttpError) -> bool:
        """Closes the connection at once with an error. Returns False, and does nothing, if the
        client has yet to read an answer."""


@dataclass(eq=False, slots=True)
class ConnectionSlot:
    """The slot of one connection."""

    address: str
    """Address of the client without a port; for IPv6, its network."""
    holder: SlotHolder | None = None
    """Set before the event loop goes on."""

    def vacate(self, error: HttpError) -> bool:
        """Closes the connection; see `SlotHolder`."""
        return self.holder is not None and self.holder.vacate(error)


@dataclass(slots=True, kw_only=True)
class ConnectionSlots:
    """The connections of one port."""

    most: int
    most_per_address: int | None = None
    _taken: set[ConnectionSlot] = field(default_factory=set)
    _waiting: dict[ConnectionSlot, None] = field(default_factory=dict)
    """Connections that wait for their clients, the longest wait first."""
    _by_address: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._taken)

    def enter(self, address: str) -> ConnectionSlot:
        """Returns a slot for a connection that waits for its client. Raises NoFreeSlot."""
        if self.most_per_address and self._by_address[address] >= self.most_per_address:
            raise NoFreeSlot(f"{address} has {self.most_per_address} connections, the most for one")
        if len(self._taken) >= self.most and not self._make_room():
            raise NoFreeSlot(f"{self.most} connections are open, the most, and all are answered")
        slot = ConnectionSlot(address)
        self._taken.add(slot)
        self._by_address[address] += 1
        self.wait(slot)
        return slot

    def wait(self, slot: ConnectionSlot) -> None:
        self._waiting.pop(slot, None)
        if slot in self._taken:
            self._waiting[slot] = None

    def answer(self, slot: ConnectionSlot) -> None:
        """Marks the connection's request as being answered, so that it keeps its slot."""
        self._waiting.pop(slot, None)

    def leave(self, slot: ConnectionSlot) -> None:
        """Frees the slot of a connection that is closed or about to be."""
        self._waiting.pop(slot, None)
        if slot not in self._taken:
            return
        self._taken.remove(slot)
        self._by_address[slot.address] -= 1
        if not self._by_address[slot.address]:
            del self._by_address[slot.address]

    def _make_room(self) -> bool:
        while slot := next(iter(self._waiting), None):
            if slot.vacate(NO_ROOM):
                self.leave(slot)
                logger.warning(
                    "connection closed to make room: %(address)s had sent no whole request,"
                    " and %(most)d connections, the most, are open",
                    {"address": slot.address, "most": self.most},
                )
                return True
            self.answer(slot)  # the client has yet to read an answer
        return False
