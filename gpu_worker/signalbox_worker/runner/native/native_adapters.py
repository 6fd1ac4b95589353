"""The adapters of a native program, and their slots."""

from collections.abc import Callable, Mapping, Sequence

from signalbox_contract.model import Adapter
from signalbox_kernels.adapters import AdapterSite, LoraPair, PackedPairs
from signalbox_kernels.program import Program
from signalbox_worker.batch.adapter_slots import AdapterSlots, OpenedAdapter
from signalbox_worker.files.adapters.adapter_memory import AdapterMemory
from signalbox_worker.files.adapters.adapter_opener import AdapterOpener
from signalbox_worker.files.adapters.peft_adapter import PeftAdapter
from signalbox_worker.runner.native.adapter_modules import ModuleRows


class NativeAdapters:
    """Packs adapters for a program."""

    def __init__(
        self,
        opener: AdapterOpener,
        program: Program,
        given: Sequence[PeftAdapter] = (),
        rows: Mapping[str, ModuleRows] | None = None,
        cut: Callable[[str, LoraPair], LoraPair] = lambda name, pair: pair,
    ) -> None:
        """Loads those that are given.

        Args:
            rows: modules of the matrices that adapters may change; none of a program without.
            cut: returns the rank's share of what is added to a matrix.
        """
        self._opener, self._program = opener, program
        self._rows, self._cut = rows or {}, cut
        self._max_rank = opener.max_rank(given)
        self.slots = AdapterSlots()
        self.memory = AdapterMemory.reserve(
            opener.config,
            given,
            max_rank=self._max_rank,
            num_bytes=self._num_bytes,
            slots=self.slots,
        )
        for adapter in given:
            self.add(self._pack(adapter))

    def open(self, name: str, folder: str) -> OpenedAdapter:
        """Reads and packs an adapter, on any thread. Raises ModelError."""
        return self._pack(self._opener.open(name, folder, max_rank=self._max_rank))

    def add(self, opened: OpenedAdapter) -> None:
        """Gives an adapter a slot, between two steps."""
        is_new = opened.info.sha256 not in self.slots.of
        slot = self.slots.add(opened.info, opened.num_bytes)
        if is_new:
            self._program.set_adapter(slot, opened.weights)

    def remove(self, adapter: Adapter) -> None:
        """Frees the slot of an adapter, and its memory, between two steps."""
        if (slot := self.slots.remove(adapter)) is not None:
            self._program.set_adapter(slot, None)

    def _pack(self, adapter: PeftAdapter) -> OpenedAdapter:
        num_bytes = self.memory.needed(adapter)
        packed = [self._pack_at(site, adapter) for site in self._program.sites]
        return OpenedAdapter(adapter.info, packed, num_bytes)

    def _pack_at(self, site: AdapterSite, adapter: PeftAdapter) -> PackedPairs | None:
        pairs = dict[str, LoraPair]()
        for name in site.modules:
            module, rows = self._rows[name]
            if adapter.rank_of(module):
                a, b = adapter.pair(module)
                pairs[name] = self._cut(name, LoraPair(a, b[rows]))
        return site.pack(pairs, self._program.shape.element)

    def _num_bytes(self, rank_of: Callable[[str], int]) -> int:
        """Returns what `_pack` makes of an adapter with these sizes r."""
        element = self._program.shape.element
        sizes = {name: rank_of(module) for name, (module, _) in self._rows.items()}
        return sum(
            site.num_bytes(max(sizes[name] for name in site.modules), element)
            for site in self._program.sites
        )
