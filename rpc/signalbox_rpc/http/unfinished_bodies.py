"""Bounds the bytes of incomplete bodies, over all connections of an HTTP port.

A client that sends most of a large body quickly and the rest slowly makes the server hold its
bytes. If all such bodies together are too large, the slowest one is given up.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from signalbox_rpc.http.connection_slots import ConnectionSlot
from signalbox_rpc.http.errors import HttpError

logger = logging.getLogger(__name__)

GIVEN_UP = HttpError(
    503, "the server holds too many bytes of unfinished bodies", closes=True, retry_after_s=1
)


@dataclass(slots=True)
class _Body:
    """The bytes received of one body."""

    since: float
    num_bytes: int = 0


@dataclass(slots=True)
class UnfinishedBodies:
    """The bodies that are being received."""

    most_bytes: int
    clock: Callable[[], float]
    num_bytes: int = 0
    """Bytes received of all incomplete bodies."""
    _bodies: dict[ConnectionSlot, _Body] = field(default_factory=dict)

    def begin(self, slot: ConnectionSlot) -> None:
        """Registers a body that begins on a connection."""
        self.end(slot)
        self._bodies[slot] = _Body(self.clock())

    def add(self, slot: ConnectionSlot, num_bytes: int) -> None:
        """Counts bytes of a body; may close any connection, including this one."""
        if (body := self._bodies.get(slot)) is None:
            return
        body.num_bytes += num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self.most_bytes:
            self._give_up_slowest()

    def end(self, slot: ConnectionSlot) -> None:
        """Forgets a body that is complete, or whose connection is gone."""
        if (body := self._bodies.pop(slot, None)) is not None:
            self.num_bytes -= body.num_bytes

    def _give_up_slowest(self) -> None:
        now = self.clock()

        def rate(slot: ConnectionSlot) -> float:
            body = self._bodies[slot]
            return body.num_bytes / max(now - body.since, 1e-3)

        slowest = min((one for one in self._bodies if self._bodies[one].num_bytes), key=rate)
        logger.warning(
            "body given up: %(num_bytes)d bytes of %(address)s, which come slowest, for unfinished"
            " bodies have more than %(most_bytes)d bytes",
            {
                "num_bytes": self._bodies[slowest].num_bytes,
                "address": slowest.address,
                "most_bytes": self.most_bytes,
            },
        )
        self.end(slowest)
        slowest.vacate(GIVEN_UP)
