"""The interface of the adapters of a model that is loaded."""

from typing import Protocol

from signalbox_contract.model import Adapter
from signalbox_worker.batch.adapter_slots import AdapterSlots, OpenedAdapter
from signalbox_worker.files.adapters.adapter_memory import AdapterMemory


class LoadedAdapters(Protocol):
    """Puts adapters into a model, and takes them out."""

    slots: AdapterSlots
    memory: AdapterMemory

    def open(self, name: str, folder: str) -> OpenedAdapter:
        """Reads and checks an adapter, on any thread. Raises ModelError."""
        ...

    def add(self, opened: OpenedAdapter) -> None:
        """Gives an adapter a slot, between two steps."""
        ...

    def remove(self, adapter: Adapter) -> None:
        """Frees the slot of an adapter, and its memory, between two steps."""
        ...
