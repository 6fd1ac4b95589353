"""Writes text_parts.json in signalbox_worker/files/checkpoints: what classes of transformers say of
models whose text part is served. `python -m scripts.text_parts` writes it; a test compares.
"""

import dataclasses
import json
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from signalbox_worker.files.checkpoints.text_part import SAME_AS, SERVED, TABLE
from signalbox_worker.models.registry import architectures


def table() -> dict[str, Any]:
    """Returns the file's content."""
    usual = {name: getattr(transformers, name).config_class() for name in SERVED}
    texts = {name: one.get_text_config(decoder=True) for name, one in usual.items()}
    ours = architectures()
    causal = {
        kind: name for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name in ours
    }
    kinds = {one.model_type: type(one) for one in texts.values()}
    return {
        "ties": {name: bool(one.tie_word_embeddings) for name, one in usual.items()},
        "types": {name: one.model_type for name, one in texts.items()},
        "architectures": causal | SAME_AS,
        "defaults": {kind: _differing(kinds[kind], name) for kind, name in SAME_AS.items()},
    }


def _differing(kind: Any, same: str) -> dict[str, Any]:
    """Returns the defaults of a class that differ from those of an architecture's."""
    other = _defaults(getattr(transformers, same).config_class)
    own = _defaults(kind)
    return {name: value for name, value in own.items() if other.get(name) != value}


def _defaults(kind: Any) -> dict[str, Any]:
    found = {
        one.name: one.default
        for one in dataclasses.fields(kind)
        if one.default is not dataclasses.MISSING
    }
    rotation = kind().rope_parameters
    return found | {
        "rope_theta": kind.default_theta,
        "partial_rotary_factor": rotation.get("partial_rotary_factor"),
    }


def text() -> str:
    return json.dumps(table(), indent=1) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
