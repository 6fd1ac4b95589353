"""The adapters that a model has, and the slot in which its layers know each content."""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from signalbox_contract.model import Adapter


class OpenedAdapter(NamedTuple):
    """An adapter that is read and checked, and that no batch can name yet."""

    info: Adapter
    weights: Any
    """The matrices in the form of the runner."""
    num_bytes: int = 0
    """Bytes of these matrices."""


class AdapterSlots:
    """Adapters by name and content. Adapters of one content share a slot."""

    def __init__(self, adapters: Iterable[Adapter] = ()) -> None:
        self.loaded: tuple[Adapter, ...] = ()
        self.of: dict[str, int] = {}
        """Slots by SHA-256."""
        self._num_bytes: dict[str, int] = {}
        for adapter in adapters:
            self.add(adapter)

    @property
    def num_bytes(self) -> int:
        """Bytes of the adapters in all slots."""
        return sum(self._num_bytes.values())

    def add(self, adapter: Adapter, num_bytes: int = 0) -> int:
        """Returns the slot of an adapter, the first that is free if its content is new."""
        kept = [one for one in self.loaded if one != adapter]
        self.loaded = tuple(sorted([*kept, adapter], key=lambda one: one.name))
        taken = set(self.of.values())
        free = next(slot for slot in itertools.count() if slot not in taken)
        self._num_bytes.setdefault(adapter.sha256, num_bytes)
        return self.of.setdefault(adapter.sha256, free)

    def remove(self, adapter: Adapter) -> int | None:
        """Returns the slot that is free afterwards; None if another name has the content."""
        self.loaded = tuple(one for one in self.loaded if one != adapter)
        if any(one.sha256 == adapter.sha256 for one in self.loaded):
            return None
        self._num_bytes.pop(adapter.sha256, None)
        return self.of.pop(adapter.sha256, None)
