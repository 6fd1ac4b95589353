"""What the rest of a worker knows of a model: its shape, read of its family's configuration, and
the methods that it is run by.

Both have neutral defaults, so that a family or a package names only what differs.
"""

import logging
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from signalbox_contract.startup import ReportProgress
    from signalbox_worker.layers import ForwardContext, WeightTarget

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Properties of a model, whole numbers of it and not of a rank.

    A family's configuration has those that differ from the defaults by these names.
    """

    architecture: str
    vocab_size: int
    max_position: int
    """Longest window in tokens."""
    num_layers: int
    """Layers of the KV cache."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    """Factor of attention scores."""
    usual_length: int = 0
    """Window in tokens unless a longer one is configured, which changes the rotary embedding; 0 is
    `max_position`."""
    hidden_size: int = 0
    """Width of hidden states that pass between stages or are pooled; 0 of a model without."""
    sliding_windows: tuple[int | None, ...] = ()
    """Number of positions that a token sees in each layer; None sees all, as do all if empty."""
    attention_soft_cap: float | None = None
    """Scores become cap * tanh(score / cap) before the softmax."""
    has_sinks: bool = False
    """True if layers call `SinkAttentionPlan.attend_with_sinks`."""
    is_bidirectional: bool = False
    """True if tokens see those behind them too, so that sequences are computed whole."""
    tie_embeddings: bool = False
    """True if config.json says that the head is the table of embeddings; the files may hold a head
    nevertheless. The configuration is a dataclass then."""

    def __post_init__(self) -> None:
        windows = self.sliding_windows or (None,) * self.num_layers
        object.__setattr__(self, "sliding_windows", windows)
        object.__setattr__(self, "usual_length", self.usual_length or self.max_position)

    @classmethod
    def of(cls, config: Any) -> "ModelShape":
        """Reads a family's configuration."""
        values = {
            one.name: getattr(config, one.name)
            for one in fields(cls)
            if one.default is MISSING or hasattr(config, one.name)
        }
        return cls(**values)


class Model:
    """A language model over a paged cache, or an encoder, which has no logits."""

    takes_adapters: bool = False
    """True if its layers read `ForwardContext.adapters`."""
    pools: bool = False
    """True if it has `normed`."""
    loads_itself: bool = False
    """True if it has `load`, which reads a checkpoint's directory in the model's own way."""

    def weight_targets(self) -> "dict[str, WeightTarget]":
        """Returns where each tensor of a checkpoint goes, by its name there."""
        raise NotImplementedError

    def ignores(self, name: str) -> bool:
        """Says whether a checkpoint's tensor without a target is expected, and not needed."""
        raise NotImplementedError

    def finish(self) -> None:
        """Packs the weights, after all of them are loaded."""
        raise NotImplementedError

    def forward(
        self, token_ids: "Tensor", positions: "Tensor", context: "ForwardContext"
    ) -> "Tensor":
        """Returns the last layer's [num_tokens, hidden_size], not normed.

        Args:
            token_ids, positions: [num_tokens] int64.
            context: what the layers read of the step.
        """
        raise NotImplementedError

    def logits(self, hidden: "Tensor") -> "Tensor":
        """Returns [num_rows, vocab_size] for [num_rows, hidden_size] of forward's result."""
        raise NotImplementedError

    def normed(self, hidden: "Tensor") -> "Tensor":
        """Returns the hidden states that are pooled, for forward's result."""
        raise NotImplementedError

    def load(self, directory: Path, progress: "ReportProgress") -> None:
        """Loads a checkpoint."""
        raise NotImplementedError


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
