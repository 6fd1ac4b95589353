"""The clears that files have made, so that none is made twice, and that workers were told of."""

import json
from contextlib import suppress

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.disk.index_schema import IndexConnection

MAX_ISSUERS = 16
"""Schedulers whose last clears are kept: those that were told last."""
_ISSUER_DIGITS = 32


class KnownClears:
    """Numbers of clears by issuer, in the order in which the issuers were last told.

    Args:
        text: as `text` has returned it; none is known if it is damaged.
    """

    def __init__(self, text: str = "") -> None:
        self._numbers: dict[bytes, int] = {}
        with suppress(ValueError, TypeError, AttributeError):
            for issuer, number in json.loads(text).items():
                if len(issuer) == _ISSUER_DIGITS and 0 < int(number) < 1 << 32:
                    self.add(ClearMark(bytes.fromhex(issuer), int(number)))

    def has(self, mark: ClearMark) -> bool:
        """Returns whether a clear, or a later one of its scheduler, is known."""
        return self._numbers.get(mark.issuer, 0) >= mark.number

    def add(self, mark: ClearMark) -> None:
        number = max(self._numbers.pop(mark.issuer, 0), mark.number)
        self._numbers[mark.issuer] = number
        for issuer in list(self._numbers)[:-MAX_ISSUERS]:
            del self._numbers[issuer]

    @property
    def marks(self) -> tuple[ClearMark, ...]:
        return tuple(ClearMark(*one) for one in self._numbers.items())

    @property
    def text(self) -> str:
        return json.dumps({issuer.hex(): number for issuer, number in self._numbers.items()})


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
