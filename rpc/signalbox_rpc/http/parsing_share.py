"""Bounds the share of the event loop's time that the parsing of dear bytes takes.

h11 spends 20 us on a chunk, even one of a byte: a read of such chunks would keep all other requests
waiting for 60 ms, and a few clients would use a core. So a connection is parsed in slices, and a
slice that took long is followed by a pause. The pauses of a port pass one after the other, and
addresses take turns: a client waits for one pause of each other address, not for all of those of a
client that has many connections.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from signalbox_rpc.http.port_limits import READ_BYTES

DEAR_S = 1e-3
"""CPU time above which a slice is dear: ten times that of an ordinary head."""
MAX_COUNTED_S = 10e-3
"""Most of the time that counts: beyond is what else the interpreter did, such as collecting."""
PAUSES = 19
"""Seconds of pause for each second that slices took up to a dear one: they have a twentieth of the
loop's time."""
FIRST_BYTES, LEAST_BYTES = 1 << 10, 256
"""Bytes of the first slice with h11, which is larger than an ordinary head; and of the smallest."""


@dataclass(eq=False, slots=True)
class Pause:
    """A pause of one connection."""

    address: str
    seconds: float
    resume: Callable[[], None]
    """Goes on with the connection."""


@dataclass(slots=True)
class ParsingShare:
    """The pauses of the connections of one port."""

    _lines: dict[str, dict[Pause, None]] = field(default_factory=dict)
    """Pauses that have not begun by address, whose turn is in this order."""
    _is_passing: bool = False

    def pause(self, address: str, cost_s: float, resume: Callable[[], None]) -> Pause:
        """Calls `resume` when parsing goes on, after slices of a connection that took `cost_s`."""
        pause = Pause(address, PAUSES * min(cost_s, MAX_COUNTED_S), resume)
        self._lines.setdefault(address, {})[pause] = None
        if not self._is_passing:
            self._begin_next()
        return pause

    def withdraw(self, pause: Pause) -> None:
        """Leaves out a pause whose connection has ended, unless it has begun."""
        line = self._lines.get(pause.address, {})
        line.pop(pause, None)
        if not line:
            self._lines.pop(pause.address, None)

    def _begin_next(self) -> None:
        self._is_passing = bool(self._lines)
        if not self._is_passing:
            return
        address = next(iter(self._lines))
        line = self._lines.pop(address)
        pause = next(iter(line))
        del line[pause]
        if line:
            self._lines[address] = line  # behind the other addresses
        asyncio.get_running_loop().call_later(pause.seconds, self._end, pause)

    def _end(self, pause: Pause) -> None:
        try:
            pause.resume()
        finally:
            self._begin_next()


@dataclass(slots=True)
class Slices:
    """The size of one connection's slices, which follows from what they cost."""

    num_bytes: int

    def was_dear(self, cost_s: float) -> bool:
        """Halves the size after a dear slice, and doubles it after another."""
        if is_dear := cost_s > DEAR_S:
            self.num_bytes = max(LEAST_BYTES, self.num_bytes // 2)
        else:
            self.num_bytes = min(READ_BYTES, self.num_bytes * 2)
        return is_dear
