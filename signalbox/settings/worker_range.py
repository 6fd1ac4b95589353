"""Number of workers that `serve` keeps running: one number, or bounds between which it follows the
load."""

import re
from typing import NamedTuple, Self

_FORM = re.compile(r"([1-9]\d{0,3})(?:\.\.([1-9]\d{0,3}))?")


class WorkerRange(NamedTuple):
    """Fewest and most workers; a fixed number if they are equal."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads N or MIN..MAX. Raises ValueError."""
        found = _FORM.fullmatch(text.strip())
        if not found:
            raise ValueError("it must be N or MIN..MAX, whole numbers from 1 to 9999")
        least, most = int(found[1]), int(found[2] or found[1])
        if least > most:
            raise ValueError(f"it must have the lower number first, {most}..{least}")
        return cls(least, most)

    def __str__(self) -> str:
        return f"{self.least}" if self.is_fixed else f"{self.least}..{self.most}"

    @property
    def is_fixed(self) -> bool:
        return self.least == self.most
