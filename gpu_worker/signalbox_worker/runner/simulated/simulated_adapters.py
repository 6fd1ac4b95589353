"""The adapters of a simulated model: each changes what its requests write to their slots."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from signalbox_contract.model import Adapter
from signalbox_worker.batch.adapter_slots import AdapterSlots, OpenedAdapter
from signalbox_worker.files.adapters.adapter_config import read_adapter_config
from signalbox_worker.files.adapters.adapter_memory import AdapterMemory
from signalbox_worker.files.adapters.peft_adapter import CONFIG, describe_adapter
from signalbox_worker.runner.simulated.hashing import UInt64Array, adapter_key


class SimulatedAdapters:
    """Satisfies `LoadedAdapters`; no adapter takes memory."""

    def __init__(self, adapters: Iterable[Adapter]) -> None:
        self.slots = AdapterSlots(adapters)
        self.memory = AdapterMemory(0, lambda _: 0, self.slots)
        self._set_keys()

    def open(self, name: str, folder: str) -> OpenedAdapter:
        read_adapter_config(Path(folder) / CONFIG)
        return OpenedAdapter(describe_adapter(name, Path(folder)), None)

    def add(self, opened: OpenedAdapter) -> None:
        self.slots.add(opened.info)
        self._set_keys()

    def remove(self, adapter: Adapter) -> None:
        self.slots.remove(adapter)
        self._set_keys()

    def _set_keys(self) -> None:
        slots = self.slots.of
        self.keys: UInt64Array = np.zeros(max(slots.values(), default=-1) + 2, dtype=np.uint64)
        for sha256, slot in slots.items():  # NO_ADAPTER is the last
            self.keys[slot] = adapter_key(sha256)
