"""The adapters of a native program, in the order in which batches number them."""

from collections.abc import Sequence

from gpu_worker.adapters.given_adapters import AdapterOpener
from gpu_worker.adapters.peft_adapter import PeftAdapter
from gpu_worker.config import ModelError
from signalbox_kernels.adapters import PackedPairs
from signalbox_kernels.program import Program


class NativeAdapters:
    """Packs adapters for a program; to be called between its steps."""

    def __init__(
        self, opener: AdapterOpener, program: Program, given: Sequence[PeftAdapter]
    ) -> None:
        self._opener, self._program = opener, program
        self._packed = [self._pack(adapter) for adapter in given]
        program.set_adapters(self._packed)

    def load(self, name: str, folder: str) -> PeftAdapter:
        """Adds an adapter behind the others. Raises ModelError."""
        if not self._program.sites:
            raise ModelError("no memory is reserved for adapters; set max_lora_rank at the start")
        adapter = self._opener.open(name, folder)
        self._packed.append(self._pack(adapter))
        self._program.set_adapters(self._packed)
        return adapter

    def _pack(self, adapter: PeftAdapter) -> list[PackedPairs | None]:
        pairs, element = dict(adapter.pairs()), self._program.shape.element
        return [site.pack(pairs, element) for site in self._program.sites]
