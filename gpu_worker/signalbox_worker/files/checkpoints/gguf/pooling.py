"""Reads from `pooling_type` of a GGUF file how its model pools."""

from pathlib import Path

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.fields import GGUFFields

GGUF_POOLING = "gguf_pooling"
"""Key of the configuration: name of the mode by which a file's model makes embeddings."""
_NONE = 0
_MODES = {1: "mean", 2: "cls", 3: "lasttoken"}
"""Modes by llama.cpp's numbers; 4 is a reranker."""


def pooling_of(fields: GGUFFields, path: Path) -> dict[str, str]:
    """Returns the key of the configuration, none for a file that says nothing. Raises
    ModelError."""
    kind = fields.whole_of_model("pooling_type", _NONE)
    if kind == _NONE:
        return {}
    if kind not in _MODES:
        raise ModelError(
            f"{path} says {fields.kind}.pooling_type = {kind}, which is not supported (4 is a "
            "reranker); use the model's safetensors"
        )
    return {GGUF_POOLING: _MODES[kind]}
