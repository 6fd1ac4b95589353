"""Puts adapters into the linear layers of a model that PyTorch runs."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from signalbox_contract.model import Adapter
from signalbox_worker.batch.adapter_slots import AdapterSlots, OpenedAdapter
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.adapters.adapter_memory import AdapterMemory
from signalbox_worker.files.adapters.adapter_opener import AdapterOpener
from signalbox_worker.files.adapters.peft_adapter import PeftAdapter
from signalbox_worker.models import Model
from signalbox_worker.models.layers.linear import FusedTarget, MatrixTarget

_WEIGHT = ".weight"
_LAYER = re.compile(r"(\.layers\.)\d+(\.)")


class _Part(NamedTuple):
    """A matrix that a module changes, and its rows among those of the module."""

    target: MatrixTarget
    rows: slice


class AdapterLoader:
    """The adapters of a model, and their slots."""

    def __init__(
        self,
        model: Model,
        architecture: str,
        model_config: ModelConfig,
        model_name: str,
        device: torch.device,
        stage: StageLayers,
    ) -> None:
        """Loads those of the configuration. Raises ModelError.

        Args:
            stage: layers that the model has here; an adapter has a part for others, too.
        """
        self._remedy = _why_not(model, architecture, device)
        self._targets = _matrices(model) if self._remedy is None else {}
        shapes = {
            _LAYER.sub(rf"\g<1>{index}\g<2>", name): _whole_shape(parts)
            for name, parts in self._targets.items()
            for index in range(stage.total)
        }
        self._opener = AdapterOpener(model_config, model_name, shapes)
        self.slots = AdapterSlots()
        if model_config.adapters and self._remedy is not None:
            raise ModelError(self._remedy)
        given = self._opener.open_given()
        self._max_rank = self._opener.max_rank(given)
        self.memory = AdapterMemory.reserve(
            model_config,
            given,
            max_rank=self._max_rank,
            num_bytes=self._num_bytes,
            slots=self.slots,
        )
        for adapter in given:
            self.add(self._cut(adapter))

    def open(self, name: str, folder: str) -> OpenedAdapter:
        """Reads an adapter, on any thread. Raises ModelError."""
        if self._remedy is not None:
            raise ModelError(self._remedy)
        return self._cut(self._opener.open(name, folder, max_rank=self._max_rank))

    def add(self, opened: OpenedAdapter) -> None:
        """Gives an adapter a slot, between two steps."""
        is_new = opened.info.sha256 not in self.slots.of
        slot = self.slots.add(opened.info, opened.num_bytes)
        for layer, cut in opened.weights if is_new else ():
            layer.add_adapter(slot, cut)

    def remove(self, adapter: Adapter) -> None:
        """Frees the slot of an adapter, between two steps."""
        if (slot := self.slots.remove(adapter)) is not None:
            for one in itertools.chain(*self._targets.values()):
                one.target.layer.remove_adapters(slot)

    def _cut(self, adapter: PeftAdapter) -> OpenedAdapter:
        """Returns this shard; what is of another pipeline stage has no target."""
        num_bytes = self.memory.needed(adapter)
        cut = []
        for name, parts in self._targets.items():
            if adapter.rank_of(name):
                a, b = map(torch.from_numpy, adapter.pair(name))
                for target, rows in parts:
                    share = target.layer.cut_adapter(target.part, a, b[rows])
                    cut.append((target.layer, share))
        return OpenedAdapter(adapter.info, cut, num_bytes)

    def _num_bytes(self, rank_of: Callable[[str], int]) -> int:
        """Returns what `_cut` makes of an adapter with these sizes r."""
        return sum(
            target.layer.adapter_bytes(target.part, rank_of(name))
            for name, parts in self._targets.items()
            for target, _ in parts
        )


def _matrices(model: Model) -> dict[str, list[_Part]]:
    """Returns the parts of each module, which is one unless a checkpoint has several fused."""
    found = dict[str, list[_Part]]()
    for name, target in model.weight_targets().items():
        if isinstance(target, MatrixTarget):
            found[name.removesuffix(_WEIGHT)] = [_Part(target, slice(None))]
        elif isinstance(target, FusedTarget):
            parts = zip(target.parts, target.rows, strict=True)
            found[name.removesuffix(_WEIGHT)] = [_Part(*part) for part in parts]
    return found


def _whole_shape(parts: Sequence[_Part]) -> tuple[int, int]:
    shapes = [target.layer.whole_shape(target.part) for target, _ in parts]
    return sum(rows for rows, _ in shapes), shapes[0][1]


def _why_not(model: Model, architecture: str, device: torch.device) -> str | None:
    """Says why a model takes no adapters; None if it does."""
    if not model.takes_adapters:
        return f"adapters are not served for {architecture}; merge them into the model"
    if device.type != "cpu":
        return f"adapters are served on a CPU, and the model is on {device}; merge them into it"
    return None
