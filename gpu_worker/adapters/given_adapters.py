"""The adapters of a model, those that a worker is given at its start and those that come later."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.model import Adapter
from gpu_worker.adapters.peft_adapter import PeftAdapter, Shapes, open_adapter, warn_of_base
from gpu_worker.config import ModelConfig, ModelError


@dataclass(frozen=True, slots=True)
class AdapterOpener:
    """Opens adapters of one model."""

    config: ModelConfig
    model_name: str
    shapes: Shapes
    """Of the modules that adapters may change."""

    def open_given(self) -> list[PeftAdapter]:
        """Opens those of the configuration, in the order of their names. Raises ModelError."""
        return [self.open(name, path) for name, path in sorted(self.config.adapters)]

    def open(self, name: str, folder: str) -> PeftAdapter:
        """Raises ModelError."""
        if name in (self.model_name, *self.config.served_model_name):
            raise ModelError(f"an adapter is named {name!r}, as the model is; give it another name")
        adapter = open_adapter(
            name, Path(folder), shapes=self.shapes, max_rank=self.config.max_lora_rank
        )
        warn_of_base(adapter, self.model_name)
        return adapter

    def max_rank(self, adapters: Sequence[PeftAdapter]) -> int:
        """Returns the largest rank that adapters may have; 0 if there will be none."""
        if self.config.max_lora_rank is not None:
            return self.config.max_lora_rank
        return max((adapter.config.max_rank for adapter in adapters), default=0)


def described(adapters: Sequence[PeftAdapter]) -> tuple[Adapter, ...]:
    return tuple(adapter.info for adapter in adapters)
