"""The interface of the place where ranks meet; needs no PyTorch."""

from typing import Protocol


class Keys(Protocol):
    """Keys that each rank of a worker sets, and others wait for."""

    @property
    def lost(self) -> str | None:
        """Reason why the ranks will not meet; None while they may."""
        ...

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, timeout_s: float | None) -> bytes:
        """Waits for a key. Raises DeviceLost if a rank is lost."""
        ...
