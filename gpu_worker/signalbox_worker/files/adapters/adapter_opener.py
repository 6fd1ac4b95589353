"""Opens the adapters that a worker is given at its start, and those that come later."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from signalbox_worker.config import USUAL_LORA_RANK, ModelConfig, ModelError
from signalbox_worker.files.adapters.peft_adapter import (
    PeftAdapter,
    Shapes,
    open_adapter,
    warn_of_base,
)


@dataclass(frozen=True, slots=True)
class AdapterOpener:
    """Opens adapters of one model."""

    config: ModelConfig
    model_name: str
    shapes: Shapes
    """Shapes of the modules that adapters may change."""

    def open_given(self) -> list[PeftAdapter]:
        """Opens those of the configuration, in the order of their names. Raises ModelError."""
        most = self.config.max_lora_rank
        return [self.open(*one, max_rank=most) for one in sorted(self.config.adapters)]

    def open(self, name: str, folder: str, *, max_rank: int | None) -> PeftAdapter:
        """Raises ModelError."""
        if name in (self.model_name, *self.config.served_model_name):
            raise ModelError(f"an adapter is named {name!r}, as the model is; give it another name")
        adapter = open_adapter(name, Path(folder), shapes=self.shapes, max_rank=max_rank)
        warn_of_base(adapter, self.model_name)
        return adapter

    def max_rank(self, adapters: Sequence[PeftAdapter]) -> int:
        """Returns the largest r that adapters may have; 0 if there will be none."""
        if self.config.max_lora_rank is not None:
            return self.config.max_lora_rank
        largest = max((adapter.config.max_rank for adapter in adapters), default=0)
        return max(largest, USUAL_LORA_RANK) if self.config.adapter_dir else largest
