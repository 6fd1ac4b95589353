"""What the files of a model tell of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes are in bytes."""

    architecture: str
    task: str
    """"generate", or what a model that pools makes: "embed", "token_embed" or "classify"."""
    max_model_len: int
    file_bytes: int
    """Of its configuration and weights."""
    weights_bytes: int
    """Of the weights in memory; 0 if they are not known."""
