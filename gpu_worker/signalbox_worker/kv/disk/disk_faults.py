"""Errors of a store on a disk: counted, said once of each kind, and raised as StoreError."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from signalbox_worker.kv.disk.index_schema import is_damage
from signalbox_worker.kv.disk.store_folder import StoreFolder
from signalbox_worker.kv.store.block_store import StoreError

logger = logging.getLogger(__name__)


class DiskFaults:
    """Errors of one store.

    Args:
        folder: the store's.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self.num_failed = 0
        self.is_damaged = False
        """True if the index has to be replaced."""
        self._folder = folder
        self._said: set[object] = set()

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Counts errors of the device and the index, and raises them as StoreError."""
        try:
            yield
        except (OSError, sqlite3.Error, ValueError) as error:
            code = getattr(error, "sqlite_errorcode", None)
            if is_damage(error):
                self.is_damaged = True
            if self._folder.is_deleted:
                self.count(
                    "deleted",
                    f"the folder {self._folder.path} was deleted; nothing more is kept until you"
                    " start the worker again, which makes it anew",
                )
            else:
                kind = (what, code or getattr(error, "errno", None))
                self.count(kind, f"{what} failed: {error}")
            raise StoreError(f"{what}: {error}") from error

    def count(self, kind: object, text: str) -> None:
        """Counts an error, and says it if none of its kind was said."""
        self.num_failed += 1
        self.log_once(kind, text)

    def log_once(self, kind: object, text: str) -> None:
        """Logs what concerns the user, once of each kind."""
        if kind not in self._said:
            self._said.add(kind)
            logger.error("disk tier of KV blocks: %s (said once)", text)
