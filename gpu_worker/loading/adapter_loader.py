"""Puts adapters into the linear layers of a model that PyTorch runs."""

import re

import torch

from gpu_worker.adapters.given_adapters import AdapterOpener
from gpu_worker.adapters.peft_adapter import PeftAdapter
from gpu_worker.batch.stage_layers import StageLayers
from gpu_worker.config import ModelConfig, ModelError
from gpu_worker.layers.linear import MatrixTarget
from gpu_worker.models import Model, TakesAdapters

_WEIGHT = ".weight"
_LAYER = re.compile(r"(\.layers\.)\d+(\.)")


class AdapterLoader:
    """The adapters of a model, numbered in the order in which they come."""

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
            _LAYER.sub(rf"\g<1>{index}\g<2>", name): one.layer.whole_shape(one.part)
            for name, one in self._targets.items()
            for index in range(stage.total)
        }
        self._opener = AdapterOpener(model_config, model_name, shapes)
        self._num_loaded = 0
        if model_config.adapters and self._remedy is not None:
            raise ModelError(self._remedy)
        self.given = tuple(self._put(adapter).info for adapter in self._opener.open_given())

    def load(self, name: str, folder: str) -> PeftAdapter:
        """Adds an adapter behind the others. Raises ModelError."""
        if self._remedy is not None:
            raise ModelError(self._remedy)
        return self._put(self._opener.open(name, folder))

    def _put(self, adapter: PeftAdapter) -> PeftAdapter:
        for module, pair in list(adapter.pairs()):  # all are sound before the first is taken
            target = self._targets.get(module)
            if target is None:  # of another stage
                continue
            a, b = map(torch.from_numpy, pair)
            target.layer.add_adapter(self._num_loaded, target.part, a, b)
        self._num_loaded += 1
        return adapter


def _matrices(model: Model) -> dict[str, MatrixTarget]:
    return {
        name.removesuffix(_WEIGHT): target
        for name, target in model.weight_targets().items()
        if isinstance(target, MatrixTarget)
    }


def _why_not(model: Model, architecture: str, device: torch.device) -> str | None:
    """Says why a model takes no adapters; None if it does."""
    if not (isinstance(model, TakesAdapters) and model.takes_adapters):
        return f"adapters are not served for {architecture}; merge them into the model"
    if device.type != "cpu":
        return f"adapters are served on a CPU, and the model is on {device}; merge them into it"
    return None
