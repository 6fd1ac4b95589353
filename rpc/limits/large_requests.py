"""Bounds the total bytes of requests that have arrived and are not parsed yet."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from contract.errors import ResourceExhausted

RETRY_AFTER_S = 1.0


class HeldBytes:
    """Counts the bytes of large requests; small ones are not counted."""

    def __init__(self, most: int, *, free: int) -> None:
        """Makes an account of at most `most` bytes.

        Args:
            free: bytes of the longest request that is not counted.
        """
        self._most = most
        self._free = free
        self._total = 0

    @contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that sets the number of bytes that a request has received.

        It raises ResourceExhausted if all requests together have more bytes than allowed.
        """
        held = 0

        def hold(num_bytes: int) -> None:
            nonlocal held
            if num_bytes <= self._free:
                return
            if self._total - held + num_bytes > self._most:
                raise ResourceExhausted("too many large requests are being read", RETRY_AFTER_S)
            self._total += num_bytes - held
            held = num_bytes

        try:
            yield hold
        finally:
            self._total -= held
