"""Properties of a model that the rest of a worker reads, taken from its family's configuration."""

from dataclasses import MISSING, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Properties of a model, whole numbers of it and not of a shard.

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
    state_bytes: tuple[int, ...] = ()
    """Bytes of the state that each layer keeps of a sequence in place of K and V; 0 of a layer that
    keeps K and V or nothing, as do all if empty."""
    is_bidirectional: bool = False
    """True if tokens see those behind them too, so that sequences are computed whole."""
    tie_embeddings: bool = False
    """True if config.json says that the head is the table of embeddings; the files may hold a head
    nevertheless. The configuration is a dataclass then."""

    def __post_init__(self) -> None:
        windows = self.sliding_windows or (None,) * self.num_layers
        object.__setattr__(self, "sliding_windows", windows)
        object.__setattr__(self, "state_bytes", self.state_bytes or (0,) * self.num_layers)
        object.__setattr__(self, "usual_length", self.usual_length or self.max_position)

    @property
    def has_states(self) -> bool:
        """True if layers are recurrent."""
        return any(self.state_bytes)

    @classmethod
    def of(cls, config: Any) -> "ModelShape":
        """Reads a family's configuration."""
        values = {
            one.name: getattr(config, one.name)
            for one in fields(cls)
            if one.default is MISSING or hasattr(config, one.name)
        }
        return cls(**values)
