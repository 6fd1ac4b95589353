"""Which architectures a worker can serve; open to models outside the tree.

A model is registered under the architecture that its config.json names:

    register_model(ModelSpec("MyForCausalLM", read_config=my_config, build=MyModel))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from gpu_worker.config import ModelError
from gpu_worker.layers import ParallelGroup, Placement, WeightTarget
from gpu_worker.models.config import (
    DecoderConfig,
    llama_config,
    mistral_config,
    qwen2_config,
    qwen3_config,
)
from gpu_worker.models.decoder import Attend, Decoder


class Model(Protocol):
    """A decoder-only language model over a paged cache."""

    def weight_targets(self) -> dict[str, WeightTarget]:
        """Returns where each tensor of a checkpoint goes, by its name there."""
        ...

    def ignores(self, name: str) -> bool:
        """Says whether a checkpoint's tensor without a target is expected, and not needed."""
        ...

    def finish(self) -> None:
        """Packs the weights, after all of them are loaded."""
        ...

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[num_tokens] int64 each, to the last layer's [num_tokens, hidden_size], not normed."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[num_rows, hidden_size] of forward's result to [num_rows, vocab_size]."""
        ...


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """How to make a model of an architecture."""

    architecture: str
    read_config: Callable[[Mapping[str, Any]], DecoderConfig]
    build: Callable[[DecoderConfig, int, Placement, ParallelGroup], Model]
    """Takes the configuration, the longest sequence, the placement and the group."""


_specs: dict[str, ModelSpec] = {}


def register_model(spec: ModelSpec) -> None:
    """Adds a model, or replaces the one of the same architecture."""
    _specs[spec.architecture] = spec


def model_spec(config: Mapping[str, Any]) -> ModelSpec:
    """Finds the model for a config.json."""
    names = config.get("architectures") or []
    for name in names:
        if name in _specs:
            return _specs[name]
    named = ", ".join(names) if names else "none named in config.json"
    raise ModelError(
        f"architecture not supported: {named}; supported are {', '.join(sorted(_specs))}"
    )


for _spec in (
    ModelSpec("LlamaForCausalLM", llama_config, Decoder),
    ModelSpec("MistralForCausalLM", mistral_config, Decoder),
    ModelSpec("Qwen2ForCausalLM", qwen2_config, Decoder),
    ModelSpec("Qwen3ForCausalLM", qwen3_config, Decoder),
):
    register_model(_spec)
