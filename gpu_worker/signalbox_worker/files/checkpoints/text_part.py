"""The text part of a model that also takes images or sound: its own config.json and tensors.

The table beside this module is generated from transformers (scripts/text_parts.py). The names of
tensors differ between the releases that wrote a checkpoint; where the table of embeddings stands
tells where the rest of the text part does.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from signalbox_worker.config import ModelError

TABLE = Path(__file__).with_name("text_parts.json")
MULTIMODAL = "multimodal_architecture"
"""Field of a text part's configuration: the architecture that config.json names."""
SERVED = (
    "Exaone4_5_ForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Glm46VForConditionalGeneration",
    "Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "LightOnOcrForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
)
"""Architectures whose text part alone computes what they do of text, as tests compare."""
SAME_AS = {
    "glm4v_text": "Glm4ForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "glm_ocr_text": "Glm4ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
}
"""Types of text parts without a causal class in transformers, and those that compute the same: the
three positions that they rotate by are equal for text."""
_OF_CODE: Mapping[str, Mapping[str, Any]] = {
    "glm4v_text": {"attention_bias": True},
    "glm_ocr_text": {"attention_bias": False},
}
"""Fields that these types have in their code alone, whatever config.json says."""
_EMBEDDINGS, _HEAD = "embed_tokens.weight", "lm_head.weight"
_OF_ALL_PARTS = (
    *("bos_token_id", "eos_token_id", "pad_token_id"),
    *("dtype", "torch_dtype", "quantization_config"),
)
"""Fields that stand beside `text_config` for it too."""


@dataclass(frozen=True, slots=True)
class _Table:
    """The rules of transformers' classes, read from the table."""

    ties: Mapping[str, bool]
    """Architectures of `SERVED`: whether the head is the table unless config.json says it."""
    types: Mapping[str, str]
    """Their types of text parts, unless config.json says it."""
    architectures: Mapping[str, str]
    """Registered architectures by types of text parts."""
    defaults: Mapping[str, Mapping[str, Any]]
    """Defaults of the types of `SAME_AS` that differ from those of the same."""


@cache
def _table() -> _Table:
    return _Table(**json.loads(TABLE.read_text(encoding="utf-8")))


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration of the text part; of a model of text alone, what is given.

    Raises ModelError for a model of several parts whose text part is not served.
    """
    name = next(iter(config.get("architectures") or ()), "")
    inner = config.get("text_config")
    if name not in SERVED:
        if isinstance(inner, Mapping) and name.endswith("ForConditionalGeneration"):
            raise ModelError(
                f"architecture not supported: {name} (its text part is "
                f"{inner.get('model_type', 'not named')!r}); of models that take images or sound, "
                f"the text parts of {', '.join(SERVED)} are"
            )
        return config
    if inner is None and "hidden_size" not in config:
        raise ModelError(f"config.json of {name} has no text_config; it is incomplete")
    if not isinstance(inner, Mapping | None):
        raise ModelError(f"config.json says text_config = {str(inner)[:40]}")
    text = dict(config if inner is None else inner)  # the first Qwen2-VL have all in one
    kind = text["model_type"] if inner and "model_type" in inner else _table().types[name]
    text = {**_table().defaults.get(kind, {}), **text, **_OF_CODE.get(kind, {}), "model_type": kind}
    if kind in SAME_AS and text.get("head_dim") is None:
        width, heads = text.get("hidden_size"), text.get("num_attention_heads")
        if isinstance(width, int) and isinstance(heads, int) and heads > 0:
            text["head_dim"] = width // heads
    text |= {one: config[one] for one in _OF_ALL_PARTS if one in config}
    ties = config.get("tie_word_embeddings", _table().ties[name])
    text["tie_word_embeddings"] = ties or text.get("tie_word_embeddings", False)
    for rotation in text.keys() & {"rope_parameters", "rope_scaling"}:
        text[rotation] = _without_sections(text[rotation])
    architecture = _table().architectures.get(kind, name)
    return {**text, "architectures": [architecture], MULTIMODAL: name}


def _without_sections(rotation: Any) -> Any:
    """Returns a rotation by three positions as one by the position that all three are in text."""
    if not isinstance(rotation, Mapping):
        return rotation
    kinds = {name: "default" for name in ("type", "rope_type") if rotation.get(name) == "mrope"}
    left = {name: one for name, one in rotation.items() if not name.startswith("mrope_")}
    return {**left, **kinds}


@dataclass(frozen=True, slots=True)
class TextTensors:
    """Places of the tensors of a text part in a checkpoint."""

    prefix: str

    @classmethod
    def among(cls, names: Iterable[str]) -> "TextTensors":
        """Finds them by the table of embeddings. Raises ModelError unless there is one."""
        found = [
            name.removesuffix(_EMBEDDINGS)
            for name in names
            if f".{name}".endswith(f".{_EMBEDDINGS}")
        ]
        if len(found) != 1:
            raise ModelError(
                f"its weights have {len(found)} tables of embeddings ({_EMBEDDINGS}), not one; "
                "fetch them again"
            )
        return cls(found[0])

    def renamed(self, name: str) -> str | None:
        """Returns a tensor's name in a model of the text part alone; None for other parts'."""
        if f".{name}".endswith(f".{_HEAD}"):
            return _HEAD
        if not name.startswith(self.prefix):
            return None
        return f"model.{name.removeprefix(self.prefix)}"
