"""Blocks on a server that others may write to: satisfies `BlockStore`.

A block counts as read if its seal opens. A server that is down or slow is bypassed for a while. A
clear that failed is repeated, and until it has ended nothing is found or kept.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.shared.block_seal import BlockSeal
from signalbox_worker.kv.shared.block_server import BlockServer, RefusedError
from signalbox_worker.kv.store.block_store import StoreError, StoreUsage

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
"""Time for which nothing is asked after a call that failed; doubled by each that fails then, or
within `MAX_PAUSE_S` of an answer: a server that refuses lookups may take writes."""
MAX_PAUSE_S = 30.0


class Bypass:
    """Says whether a store may be asked; safe from several threads.

    A call that began before the last failure says nothing any more: it neither ends the bypass nor
    makes the pause longer.
    """

    def __init__(self, place: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._lock = threading.Lock()
        self._num_failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._ask_at: float | None = None
        """Time from which one call may try again; None while the store answers."""
        self._answered_at = -math.inf
        """Time at which the last bypass ended."""

    def begin(self, *, in_pause: bool = False) -> int | None:
        """Returns a number for the end of a call; None if the store is not to be asked.

        After a pause one call tries.

        Args:
            in_pause: ask in any case, as for an operator.
        """
        with self._lock:
            if self._ask_at is not None:
                if self._clock() < self._ask_at and not in_pause:
                    return None
                self._ask_at = self._clock() + self._pause_s
            return self._num_failures

    def succeed(self, begun: int) -> None:
        with self._lock:
            if self._ask_at is not None and begun == self._num_failures:
                logger.warning("the KV store %s answers again", self._place)
                self._ask_at, self._answered_at = None, self._clock()

    def spare(self, begun: int) -> None:
        """Says that a call asked the store nothing: another one may try instead."""
        with self._lock:
            if self._ask_at is not None and begun == self._num_failures:
                self._ask_at = min(self._ask_at, self._clock())

    def fail(self, begun: int, reason: str) -> None:
        with self._lock:
            if begun != self._num_failures:
                return
            self._num_failures += 1
            now = self._clock()
            if self._ask_at is None:
                logger.error(
                    "the KV store %s is bypassed, and tokens are computed, until it answers: %s",
                    self._place,
                    reason,
                )
            if self._ask_at is None and now > self._answered_at + MAX_PAUSE_S:
                self._pause_s = FIRST_PAUSE_S
            else:
                self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            self._ask_at = now + self._pause_s


MAX_UNFINISHED = 64
"""Clears of tenants that are kept to be repeated; more are repeated as one of all tenants."""


class SharedStore:
    """The blocks of one model; calls may be made by several threads."""

    def __init__(self, server: BlockServer, seal: BlockSeal, bypass: Bypass) -> None:
        self._server = server
        self._seal = seal
        self._bypass = bypass
        self._clearing = threading.Lock()
        self._unfinished: list[bytes | None] = []
        """Tenants whose clearing has failed; None is all."""
        self._said: set[str] = set()
        self._num_failed = 0
        self._usage = StoreUsage(0, 0, 0)

    @property
    def block_bytes(self) -> int:
        return self._seal.block_bytes

    @property
    def is_open(self) -> bool:
        return True

    def find(self, keys: Sequence[bytes]) -> int:
        self.check_cleared()
        with self._calling("looking up blocks"):
            return self._server.count_leading([self._seal.names.block(key) for key in keys])

    def read(self, key: bytes, into: memoryview) -> bool:
        self.check_cleared()
        name = self._seal.names.block(key)
        with self._calling("reading a block"):
            sealed = self._server.read(name)
            if sealed is None or self._seal.open(key, sealed, into):
                return sealed is not None
            self._fail("damaged", "a block is not what a worker wrote; its tokens are computed")
            self._server.remove(name)
            return False

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        self.check_cleared()
        sealed = self._seal.seal(key, data, tenant)
        with self._calling("writing a block"):
            self._server.write(self._seal.names.block(key), sealed)
            return True

    def remove(self, key: bytes) -> None:
        with self._calling("removing a block"):
            self._server.remove(self._seal.names.block(key))

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        name = None if tenant is None else self._seal.names.tenant(tenant)
        if len(self._unfinished) >= MAX_UNFINISHED:
            name = None
        if name not in self._unfinished[1:]:  # the first one may be under way
            self._unfinished.append(name)
        with self._calling("clearing", in_pause=True):
            self._finish_clears()

    def maintain(self) -> None:
        """Repeats clears that failed, and asks what the server holds. Raises StoreError."""
        with self._calling("asking what it holds"):
            self._finish_clears()
            self._usage = self._server.usage()

    def usage(self) -> StoreUsage:
        return self._usage._replace(num_failed=self._num_failed)

    def close(self) -> None:
        with suppress(OSError):
            self._server.close()

    def check_cleared(self) -> None:
        """Raises StoreError if a clear has failed and has not been made since."""
        if self._unfinished:
            raise StoreError("a clear of the KV store has not ended")

    def _finish_clears(self) -> None:
        with self._clearing:
            while self._unfinished:
                self._server.clear(self._unfinished[0])
                del self._unfinished[0]

    @contextmanager
    def _calling(self, what: str, *, in_pause: bool = False) -> Iterator[None]:
        if (begun := self._bypass.begin(in_pause=in_pause)) is None:
            raise StoreError("the KV store is bypassed")
        num_answers = self._server.num_answers
        try:
            yield
        except OSError as error:
            self._num_failed += 1
            self._bypass.fail(begun, f"{what}: {error}")
            raise StoreError(f"{what}: {error}") from error
        except RefusedError as error:
            self._bypass.succeed(begun)
            self._fail(what, f"{what} was refused: {error}")
            raise StoreError(f"{what}: {error}") from error
        else:
            if self._server.num_answers == num_answers:
                self._bypass.spare(begun)
            else:
                self._bypass.succeed(begun)

    def _fail(self, kind: str, text: str) -> None:
        self._num_failed += 1
        if kind not in self._said:
            self._said.add(kind)
            logger.error("shared tier of KV blocks: %s (said once)", text)
