"""Classes of transformers for the text parts of models that also take images or sound."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signalbox_worker.files.checkpoints.safetensors_file import stored_safetensors
from signalbox_worker.files.checkpoints.text_part import MULTIMODAL, TextTensors


def text_class(config: Mapping[str, Any], causal: Mapping[str, str]) -> Any:
    """Returns the causal class of a text part, or else the whole model's without its other parts.

    Args:
        causal: names of causal classes by types of configurations.
    """
    import transformers

    own = causal.get(config["model_type"])
    return (
        getattr(transformers, own) if own else _of_text(getattr(transformers, config[MULTIMODAL]))
    )


def _of_text(whole: Any) -> Any:
    """Returns a class of the same name, which transformers' rules for names of tensors go by."""

    def make(self: Any, hf_config: Any) -> None:
        whole.__init__(self, hf_config)
        decoder = self.get_decoder()
        for name, part in list(self.base_model.named_children()):
            if decoder not in part.modules():
                delattr(self.base_model, name)

    own = {"__init__": make, "__module__": whole.__module__}
    return type(whole.__name__, (whole,), own)


def names_of_text(directory: Path) -> dict[str, str]:
    """Returns what transformers is to put for the beginnings of tensors' names."""
    stored = (stored_safetensors(file) for file in directory.glob("*.safetensors"))
    prefix = TextTensors.among(name for tensors in stored for name, _ in tensors).prefix
    return {f"^{re.escape(prefix)}": "model.", r"^(.*\.)?lm_head": "lm_head"}
