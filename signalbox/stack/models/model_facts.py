"""Properties of a model that its files tell before it is loaded."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes are in bytes."""

    architecture: str
    task: str
    """"generate", or what a model that pools makes: "embed", "token_embed" or "classify"."""
    max_model_len: int
    file_bytes: int
    """Size of its configuration and weights on the disk."""
    weights_bytes: int
    """Size of its weights in memory; 0 if it is not known."""
