"""The marks of the clears that an index has made, so that none is made twice."""

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv_disk.index_connection import IndexConnection
from signalbox_worker.kv_disk.known_clears import KnownClears

_ALL = b""
"""Name of all tenants, where clears are named."""


class ClearMarks:
    """The last mark of each tenant, and of each scheduler."""

    def __init__(self, connection: IndexConnection) -> None:
        self._connection = connection

    def has(self, tenant: bytes | None, mark: ClearMark) -> bool:
        """Says whether a clear of a tenant, or all, was made, or a later one that includes it."""
        if mark.catches_up:
            return self._known_clears().has(mark)
        number = self._connection.number(
            "SELECT max(number) FROM clears WHERE issuer = ? AND tenant IN (?, ?)",
            mark.issuer,
            _ALL,
            tenant or _ALL,
        )
        return number is not None and number >= mark.number

    def add(self, tenant: bytes | None, mark: ClearMark) -> None:
        """Keeps a mark, within the transaction that clears; forgets those of another issuer's
        tenants."""
        known = self._known_clears()
        known.add(mark)
        self._connection.set_state("clears", known.text)
        if mark.catches_up:  # later clears of tenants may have been made before
            return
        writer = self._connection.writer
        writer.execute(
            "DELETE FROM clears WHERE issuer != ? OR (? AND number < ?)",
            (mark.issuer, tenant is None, mark.number),
        )
        writer.execute(
            "INSERT OR REPLACE INTO clears VALUES (?, ?, ?)",
            (tenant or _ALL, mark.issuer, mark.number),
        )

    def _known_clears(self) -> KnownClears:
        return KnownClears(self._connection.text("clears"))
