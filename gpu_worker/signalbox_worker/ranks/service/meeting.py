"""The meeting place of tensor-parallel ranks: keys that each sets and others wait for."""

import threading

from signalbox_worker.device.device_errors import DeviceLost


class RankLost(DeviceLost):
    """Another rank is gone, so that this one can compute nothing more."""


class Meeting:
    """The keys, on rank 0. Safe from any thread."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self.lost: str | None = None
        """Reason why ranks that wait here will not meet."""

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float | None) -> bytes:
        """Waits for a key. Raises RankLost, or TimeoutError that names the key."""
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: key in self._values or self.lost is not None, timeout_s
            )
            if self.lost is not None:
                raise RankLost(self.lost)
            if not is_there:
                raise TimeoutError(f"no rank has set {key} in time")
            return self._values[key]

    def call_off(self, reason: str) -> None:
        """Makes ranks that wait raise RankLost."""
        with self._changed:
            self.lost = reason
            self._changed.notify_all()
