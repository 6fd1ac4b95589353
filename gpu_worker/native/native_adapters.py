"""The adapters of a native program, and their slots."""

from collections.abc import Sequence

from contract.model import Adapter
from gpu_worker.adapters.given_adapters import AdapterOpener
from gpu_worker.adapters.peft_adapter import PeftAdapter
from gpu_worker.batch.adapter_slots import AdapterSlots, OpenedAdapter
from gpu_worker.config import ModelError
from gpu_worker.native.tensor_share import TensorShare
from signalbox_kernels.program import Program


class NativeAdapters:
    """Packs adapters for a program."""

    def __init__(
        self,
        opener: AdapterOpener,
        program: Program,
        given: Sequence[PeftAdapter],
        share: TensorShare,
    ) -> None:
        self._opener, self._program, self._share = opener, program, share
        self._max_rank = opener.max_rank(given)
        self.slots = AdapterSlots()
        for adapter in given:
            self.add(self._pack(adapter))

    def open(self, name: str, folder: str) -> OpenedAdapter:
        """Reads and packs an adapter, on any thread. Raises ModelError."""
        if not self._program.sites:
            raise ModelError("no memory is reserved for adapters; set max_lora_rank at the start")
        return self._pack(self._opener.open(name, folder, max_rank=self._max_rank))

    def add(self, opened: OpenedAdapter) -> None:
        """Gives an adapter a slot, between two steps."""
        is_new = opened.info.sha256 not in self.slots.of
        slot = self.slots.add(opened.info)
        if is_new:
            self._program.set_adapter(slot, opened.weights)

    def remove(self, adapter: Adapter) -> None:
        """Frees the slot of an adapter, and its memory, between two steps."""
        if (slot := self.slots.remove(adapter)) is not None:
            self._program.set_adapter(slot, None)

    def _pack(self, adapter: PeftAdapter) -> OpenedAdapter:
        pairs = {module: self._share.pair(module, pair) for module, pair in adapter.pairs()}
        element = self._program.shape.element
        packed = [site.pack(pairs, element) for site in self._program.sites]
        return OpenedAdapter(adapter.info, packed)
