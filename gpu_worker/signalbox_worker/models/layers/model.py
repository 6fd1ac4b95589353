"""The methods that a model is run by; what a family or a package leaves out has a default."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from signalbox_contract.startup import ReportProgress
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.models.layers.forward_context import ForwardContext
from signalbox_worker.models.layers.weight_placement import WeightTarget

logger = logging.getLogger(__name__)


class Model:
    """A language model over a paged cache, or an encoder, which has no logits."""

    takes_adapters: bool = False
    """True if its layers read `ForwardContext.adapters`."""
    pools: bool = False
    """True if it has `normed`."""
    loads_itself: bool = False
    """True if it has `load`, which reads a checkpoint's directory in the model's own way."""

    def weight_targets(self) -> dict[str, WeightTarget]:
        """Returns where each tensor of a checkpoint goes, by its name there."""
        raise NotImplementedError

    def ignores(self, name: str) -> bool:
        """Says whether a checkpoint's tensor without a target is expected, and not needed."""
        raise NotImplementedError

    def finish(self) -> None:
        """Packs the weights, after all of them are loaded."""
        raise NotImplementedError

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """Returns the last layer's [num_tokens, hidden_size], not normed.

        Args:
            token_ids, positions: [num_tokens] int64.
            context: what the layers read of the step.
        """
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns [num_rows, vocab_size] for [num_rows, hidden_size] of forward's result."""
        raise NotImplementedError

    def normed(self, hidden: Tensor) -> Tensor:
        """Returns the hidden states that are pooled, for forward's result."""
        raise NotImplementedError

    def load(self, directory: Path, progress: ReportProgress) -> None:
        raise NotImplementedError

    def load_tensors(self, stored: Mapping[str, StoredTensor]) -> bool:
        """Loads a checkpoint's tensors of another source than a directory in the model's own way.
        Returns False if `weight_targets` takes them."""
        return False


class UnderivedModel(Model):
    """A model of a package that does not derive from `Model`; served for one release."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.pools, self.loads_itself = hasattr(model, "normed"), hasattr(model, "load")
        for name, own in vars(Model).items():
            if (callable(own) or name == "takes_adapters") and hasattr(model, name):
                setattr(self, name, getattr(model, name))


def as_model(model: Any) -> Model:
    """Returns what a `ModelSpec` has built."""
    if isinstance(model, Model):
        return model
    logger.warning(
        "%s does not derive from signalbox_worker.models.Model, which the next release asks for",
        type(model).__name__,
    )
    return UnderivedModel(model)
