"""The last clear of each scheduler that files have made, or workers of a folder were told of."""

import json
from contextlib import suppress

from signalbox_contract.sections.store_moves import ClearMark

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
