"""Bounds the share of the event loop's time that the parsing of dear bytes takes.

h11 spends 20 us on a chunk, even one of a byte: a read of such chunks would keep all other requests
waiting for 60 ms, and a few clients would use a core. So a connection is parsed in slices. Those
that took long are followed by a pause, one after the other for all connections of a port.
"""

from dataclasses import dataclass

from rpc.http.port_limits import READ_BYTES

DEAR_S = 1e-3
"""CPU time above which a slice is dear: ten times that of an ordinary head."""
MAX_COUNTED_S = 10e-3
"""Most of the time that counts: beyond is what else the interpreter did, such as collecting."""
PAUSES = 19
"""Seconds of pause for each second that slices took up to a dear one: they have a twentieth of the
loop's time."""
FIRST_BYTES, LEAST_BYTES = 1 << 10, 256
"""Bytes of the first slice with h11, which is larger than an ordinary head; and of the smallest."""


class ParsingShare:
    """The pauses of the connections of one port."""

    def __init__(self) -> None:
        self._ends = 0.0

    def pause_after(self, cost_s: float, now: float) -> float:
        """Returns when the parsing of a connection goes on, after slices that took `cost_s`."""
        self._ends = max(self._ends, now) + PAUSES * min(cost_s, MAX_COUNTED_S)
        return self._ends


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
