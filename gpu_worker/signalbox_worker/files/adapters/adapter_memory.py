"""Reserves memory for adapters at the start, and says whether another one fits into it.

The KV cache is sized beside the whole reservation, so that no adapter takes memory from it later.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from signalbox_worker.batch.adapter_slots import AdapterSlots
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.adapters.peft_adapter import PeftAdapter

logger = logging.getLogger(__name__)

MIB = 1 << 20
NumBytes = Callable[[Callable[[str], int]], int]
"""Returns the bytes that an adapter takes here. Its argument returns r of a module, 0
for one that the adapter does not change."""


@dataclass(frozen=True, slots=True)
class AdapterMemory:
    """The reservation, for adapters that are opened one at a time."""

    reserved: int
    """Bytes."""
    _num_bytes: NumBytes
    _slots: AdapterSlots

    @classmethod
    def reserve(
        cls,
        config: ModelConfig,
        given: Iterable[PeftAdapter],
        *,
        max_rank: int,
        num_bytes: NumBytes,
        slots: AdapterSlots,
    ) -> "AdapterMemory":
        """Reserves for the adapters of the start, and for those of the largest r that may come.

        Args:
            max_rank: largest r that an adapter may have.
            slots: of the adapters that are loaded.
        """
        largest = num_bytes(lambda _: max_rank)
        if config.max_cpu_loras is not None:
            reserved = config.max_cpu_loras * largest
        else:
            of_given = {one.info.sha256: num_bytes(one.rank_of) for one in given}
            reserved = sum(of_given.values()) + config.num_later_adapters * largest
        if reserved:
            logger.info(
                "%.1f MiB are reserved for LoRA adapters; one with r = %d in all modules takes"
                " %.1f MiB",
                reserved / MIB,
                max_rank,
                largest / MIB,
            )
        return cls(reserved, num_bytes, slots)

    @property
    def left(self) -> int:
        """Bytes of the reservation that no loaded adapter has."""
        return self.reserved - self._slots.num_bytes

    def needed(self, adapter: PeftAdapter) -> int:
        """Returns the bytes of an adapter. Raises ModelError if so many are not left."""
        if not self.reserved:
            raise ModelError(
                f"no memory was reserved for adapters, so {adapter.info.name} cannot be loaded;"
                " start with --adapter-dir or --max-cpu-loras"
            )
        needed = self._num_bytes(adapter.rank_of)
        if adapter.info.sha256 not in self._slots.of and needed > self.left:
            raise ModelError(
                f"the adapter {adapter.info.name} takes {needed / MIB:.1f} MiB, and"
                f" {self.left / MIB:.1f} of the {self.reserved / MIB:.1f} MiB that were reserved"
                " for adapters are left; unload another one or raise --max-cpu-loras"
            )
        return needed
