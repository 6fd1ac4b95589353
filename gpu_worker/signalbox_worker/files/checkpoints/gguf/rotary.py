"""A GGUF file's rotation as the rope_parameters of Hugging Face's config.json.

YaRN (Peng et al., 2023) and LongRoPE (Ding et al., 2024) scale the rotated queries and keys too:
`rope.scaling.attn_factor` multiplies what llama.cpp computes for that, `yarn_attn_factor` is what
the model's own config.json says.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.families import PARTLY_ROTATED
from signalbox_worker.files.checkpoints.gguf.fields import GGUFFields
from signalbox_worker.files.checkpoints.gguf.hybrids import UNROTATED
from signalbox_worker.files.checkpoints.gguf.reader import GGUFContent

FREQUENCY_DIVISORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_BETA_FAST, _BETA_SLOW = 32.0, 1.0


def rope_parameters(
    fields: GGUFFields, content: GGUFContent, *, head_size: int, path: Path
) -> dict[str, Any]:
    """Returns rope_parameters; raises ModelError for a rotation that is not served, or is none."""
    parameters = _parameters(fields, content, head_size=head_size, path=path)
    for name, value in parameters.items():
        if not all(
            isinstance(one, str) or (math.isfinite(one) and one > 0)
            for one in (value if isinstance(value, list) else [value])
        ):
            shown = str(value)[:40]
            raise ModelError(f"{path} rotates by a {name} of {shown}; fetch a sound file")
    return parameters


def _parameters(
    fields: GGUFFields, content: GGUFContent, *, head_size: int, path: Path
) -> dict[str, Any]:
    parameters: dict[str, Any] = {"rope_theta": fields.real_of_model("rope.freq_base", 10000.0)}
    rotated = fields.whole_of_model("rope.dimension_count", head_size)
    if rotated != head_size and fields.kind not in UNROTATED:
        if fields.kind not in PARTLY_ROTATED:
            raise ModelError(f"{path} rotates a part of each head, which is not supported")
        parameters["partial_rotary_factor"] = rotated / head_size
    if LONG_FACTORS in content.tensors or SHORT_FACTORS in content.tensors:
        if FREQUENCY_DIVISORS in content.tensors:
            raise ModelError(f"{path} has {FREQUENCY_DIVISORS} beside {LONG_FACTORS}, not one")
        return parameters | _longrope(fields, content, path)
    scaling = _scaling(fields, path)
    if FREQUENCY_DIVISORS not in content.tensors:
        return parameters | scaling
    if scaling["rope_type"] != "default":
        raise ModelError(
            f"{path} has {FREQUENCY_DIVISORS} beside rope scaling {scaling['rope_type']!r}, which "
            "is not supported"
        )
    divisors = _values(content, FREQUENCY_DIVISORS)
    if len(divisors) != head_size // 2:
        raise ModelError(f"{path} has {len(divisors)} divisors for {head_size // 2} frequencies")
    return parameters | {"rope_type": "divisors", "divisors": divisors}


def _scaling(fields: GGUFFields, path: Path) -> dict[str, Any]:
    """llama.cpp takes a factor without a type as linear, and 0 as no factor."""
    kind = str(fields.of_model("rope.scaling.type", "linear"))
    if kind == "none":
        return {"rope_type": "default"}
    factor = fields.real_of_model("rope.scale_linear", 0.0)
    factor = fields.real_of_model("rope.scaling.factor", factor) or 1.0
    if kind == "linear":
        is_scaled = factor != 1.0
        return {"rope_type": "linear", "factor": factor} if is_scaled else {"rope_type": "default"}
    if kind == "yarn":
        return _yarn(fields, path, factor)
    raise ModelError(f"{path} says rope scaling {kind!r}, which is not supported")


def _yarn(fields: GGUFFields, path: Path, factor: float) -> dict[str, Any]:
    extrapolation = fields.real_of_model("rope.scaling.yarn_ext_factor", 1.0)
    if extrapolation not in (-1.0, 1.0):  # -1 is unset
        raise ModelError(f"{path} mixes YaRN by {extrapolation}, which is not supported")
    if fields.of_model("rope.scaling.yarn_attn_factor", None) is None:
        by_factor = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        attention = by_factor * fields.real_of_model("rope.scaling.attn_factor", 1.0)
    else:
        attention = fields.real_of_model("rope.scaling.yarn_attn_factor")
    context = fields.whole_of_model("context_length")
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": fields.whole_of_model(
            "rope.scaling.original_context_length", context
        ),
        "beta_fast": fields.real_of_model("rope.scaling.yarn_beta_fast", _BETA_FAST),
        "beta_slow": fields.real_of_model("rope.scaling.yarn_beta_slow", _BETA_SLOW),
        "attention_factor": attention,
    }


def _longrope(fields: GGUFFields, content: GGUFContent, path: Path) -> dict[str, Any]:
    if fields.kind != "phi3":
        raise ModelError(
            f"{path} rotates long contexts by factors of their own, which is not supported for "
            f"{fields.kind!r}; use the model's safetensors"
        )
    for name in (LONG_FACTORS, SHORT_FACTORS):
        if name not in content.tensors:
            raise ModelError(f"{path} has no {name}; it is incomplete, fetch or convert it again")
    fields.of_model("rope.scaling.type", None)  # the tensors say it
    has_factor = fields.of_model("rope.scaling.attn_factor", None) is not None
    attention = fields.real_of_model("rope.scaling.attn_factor", 1.0)
    return {
        "rope_type": "longrope",
        "original_max_position_embeddings": fields.whole_of_model(
            "rope.scaling.original_context_length"
        ),
        "long_factor": _values(content, LONG_FACTORS),
        "short_factor": _values(content, SHORT_FACTORS),
        **({"attention_factor": attention} if has_factor else {}),
    }


def _values(content: GGUFContent, name: str) -> list[float]:
    tensor = content.tensors[name]
    if tensor.type is not GGMLQuantizationType.F32:
        raise ModelError(f"{tensor.path} has {name} as {tensor.type.name}; F32 is expected")
    values: list[float] = tensor.data.view(np.float32).tolist()
    return values
