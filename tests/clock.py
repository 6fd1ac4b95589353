"""A clock that tests set."""

from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    """Stands where it was set."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
