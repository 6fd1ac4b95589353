"""The fields of a GGUF file: which were read, and which of the rest may change an answer.

A field of the architecture that nothing here reads is refused by its name, unless it says what is
the case anyway: a file that computes something else would otherwise be served with wrong text. The
names are those that llama.cpp's converters write and its loader reads.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signalbox_worker.config import ModelError

_NEUTRAL = frozenset(
    {
        "classifier.output_labels",
        "n_deepstack_layers",  # where images are added
        "rope.dimension_sections",  # of positions that are equal in text
        "rope.scaling.finetuned",
        "tensor_data_layout",
        "vocab_size",
    }
)
"""Fields of an architecture that say nothing about the logits of a generated token."""
_UNIT = (0.0, 1.0)
_ONLY: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (1,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": _UNIT,
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attention.value_scale": _UNIT,
    "embedding_scale": _UNIT,
    "expert_count": (0,),
    "expert_feed_forward_length": (0,),
    "expert_gating_func": (0, 1),  # 1 is softmax
    "expert_group_count": _UNIT,
    "expert_group_used_count": _UNIT,
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_used_count": (0,),
    "expert_weights_norm": (1,),
    "expert_weights_scale": _UNIT,
    "interleave_moe_layer_step": _UNIT,
    "leading_dense_block_count": (0,),
    "logit_scale": _UNIT,
    "moe_every_n_layers": _UNIT,
    "nextn_predict_layers": (0,),
    "residual_scale": _UNIT,
    "rope.scaling.alpha": _UNIT,
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (-1, 0),  # -1 is unset
    "rope.scaling.yarn_log_multiplier": (0,),
    "use_parallel_residual": (0,),
}
"""Fields that are taken at the values that change nothing; where they are read, they may be any."""
_UNSCALED = frozenset(
    {
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scale_linear",
    }
)
"""Numbers of a scaling that the file's type of scaling does not use, whatever they are."""
_TOKENIZER_READ = frozenset(
    f"tokenizer.ggml.{name}"
    for name in (
        "add_bos_token",
        "add_eos_token",
        "add_space_prefix",
        "bos_token_id",
        "eom_token_id",
        "eos_token_id",
        "eos_token_ids",
        "eot_token_id",
        "merges",
        "model",
        "padding_token_id",
        "pre",
        "scores",
        "token_type",
        "tokens",
        "unknown_token_id",
    )
)
_TOKENIZER_ONLY: Mapping[str, tuple[float, ...]] = {
    "tokenizer.ggml.add_sep_token": (0,),
    "tokenizer.ggml.normalizer.lowercase": (0,),
    "tokenizer.ggml.normalizer.strip_accents": (0,),
    "tokenizer.ggml.remove_extra_whitespaces": (0,),
}
_TOKENIZER_NEUTRAL = frozenset({"tokenizer.ggml.token_type_count"})


class GGUFFields:
    """Looks fields up; names the file where one is missing."""

    def __init__(self, fields: Mapping[str, Any], path: Path) -> None:
        self._fields = fields
        self._path = path
        self._read: set[str] = set()
        self.kind = str(self.get("general.architecture"))

    def get(self, key: str, *default: Any) -> Any:
        """Returns a field, or the default if there is one."""
        self._read.add(key)
        value = self._fields.get(key)
        if value is not None:
            return value
        if default:
            return default[0]
        raise ModelError(
            f"{self._path} has no {key!r}; it is incomplete, fetch or convert it again"
        )

    def of_model(self, key: str, *default: Any) -> Any:
        """Returns a field of the architecture; of one value for each layer, what all share."""
        value = self.each_of_model(key, *default)
        if not isinstance(value, list):
            return value
        if len({str(each) for each in value}) != 1:
            raise ModelError(
                f"{self._path} has a {self.kind}.{key} for each layer, which is not supported; "
                "use the model's safetensors"
            )
        return value[0]

    def whole_of_model(self, key: str, *default: int) -> int:
        """Returns a whole number of the architecture."""
        value = self.of_model(key, *default)
        if not isinstance(value, int):
            raise self._unfit(key, value, "no whole number")
        if not abs(value) < 1 << 31:
            raise self._unfit(key, value, "not below 2147483648")
        return value

    def size_of_model(self, key: str, *default: int) -> int:
        """Returns a whole number of the architecture that counts at least one."""
        value = self.whole_of_model(key, *default)
        if value < 1:
            raise self._unfit(key, value, "not positive")
        return value

    def real_of_model(self, key: str, *default: float) -> float:
        """Returns a number of the architecture."""
        value = self.of_model(key, *default)
        if not isinstance(value, int | float):
            raise self._unfit(key, value, "no number")
        return float(value)

    def _unfit(self, key: str, value: Any, what: str) -> ModelError:
        return ModelError(
            f"{self._path} says {self.kind}.{key} = {str(value)[:40]}, which is {what}"
        )

    def each_of_model(self, key: str, *default: Any) -> Any:
        """Returns a field of the architecture, which may be a list of one value for each layer."""
        return self.get(f"{self.kind}.{key}", *default)

    def refuse_unread(self) -> None:
        """Raises ModelError if a field that was not read may change what the model answers."""
        for key, value in self._fields.items():
            if key in self._read:
                continue
            if key.startswith(f"{self.kind}."):
                self._judge(key, value, key.partition(".")[2], _NEUTRAL | _UNSCALED, _ONLY)
            elif key.startswith("tokenizer.ggml.") and not key.endswith("_token_id"):
                neutral = _TOKENIZER_READ | _TOKENIZER_NEUTRAL
                self._judge(key, value, key, neutral, _TOKENIZER_ONLY)

    def _judge(
        self,
        key: str,
        value: Any,
        name: str,
        neutral: frozenset[str],
        only: Mapping[str, tuple[float, ...]],
    ) -> None:
        if name in neutral or _is_one_of(value, only.get(name, ())):
            return
        shown = str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}..."
        raise ModelError(
            f"{self._path} says {key} = {shown}, which is not supported and may change what the "
            "model answers; use the model's safetensors"
        )


def _is_one_of(value: Any, allowed: tuple[float, ...]) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(
        isinstance(each, int | float) and any(math.isclose(each, other) for other in allowed)
        for each in values
    )
