"""LongRoPE (Ding et al., 2024) of models that run through transformers: Phi-3 and Phi-4.

Such a model has factors for sequences up to its original length, and others for longer ones.
transformers chooses by the longest sequence of a batch, so one sequence would change another, and
the cached keys of a sequence that grows past the original length would no longer fit. Here the
window that is served chooses, once for all sequences, as in vLLM and llama.cpp.
"""

from typing import Any

import torch

from signalbox_worker.config import ModelError

_KIND = "longrope"


def original_length(text_config: Any) -> int | None:
    """Returns the longest window of the short factors; None for a model without long ones."""
    rope = getattr(text_config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    lengths = [
        int(parameters["original_max_position_embeddings"])
        for parameters in nested or [rope]
        if parameters.get("rope_type") == _KIND
    ]
    return min(lengths, default=None)


def pin_longrope(model: Any, max_model_len: int) -> None:
    """Gives a model's rotations the factors of a window, and ends the choice at each step.

    Raises ModelError where only some kinds of layers have LongRoPE.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict) and _KIND in kind.values():
            raise ModelError("LongRoPE of some kinds of layers alone is not supported")
        if kind != _KIND:
            continue
        frequencies, _ = ROPE_INIT_FUNCTIONS[_KIND](
            module.config, module.inv_freq.device, seq_len=max_model_len
        )
        with torch.no_grad():
            module.inv_freq.copy_(frequencies)
        module.rope_type = "default"  # whose frequencies stay as they are
