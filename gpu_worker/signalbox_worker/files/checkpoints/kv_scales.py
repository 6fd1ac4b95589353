"""Scales of K and V that a checkpoint brings for a cache in E4M3, by layer.

A value is code times scale. llm-compressor writes `self_attn.k_scale`, ModelOpt
`self_attn.k_proj.k_scale`, Quark and older compressed-tensors `self_attn.k_proj.output_scale`, and
AutoFP8 one `self_attn.kv_scale` for both.
"""

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

from signalbox_kernels.floats import to_float32
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.quantised.fields import arguments

logger = logging.getLogger(__name__)

KVScales = tuple[tuple[float, float], ...]
"""[num_layers]: the scales of K and of V."""

_NAME = re.compile(
    r"\blayers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:attn\.|qkv_proj\.|[qkv]_proj\.)?(?P<sides>q|k|v|kv|prob)_scale"
    r"|(?P<side>[qkv])_proj\.output_scale|prob_output_scale)$"
)


_FP8 = {
    "type": "float",
    "num_bits": 8,
    "symmetric": True,
    "strategy": "tensor",
    "dynamic": False,
}
"""Fields of a `kv_cache_scheme` of codes in E4M3 with one static scale."""
_STATIC = "static"
"""The same scheme in AutoFP8's words."""


def check_kv_scheme(config: Mapping[str, Any], kv_dtype: str) -> None:
    """Checks that the scales of a checkpoint are of the codes that `kv_dtype` stores.

    Raises ModelError for "fp8" if `kv_cache_scheme` in config.json means other codes, or other
    scales than a static one each for K and V of a layer. With other types no scale is read, and a
    line says so.
    """
    described = config.get("quantization_config")
    scheme = described.get("kv_cache_scheme") if isinstance(described, Mapping) else None
    if not scheme:
        return
    wrong = _unlike_fp8(scheme)
    if kv_dtype != "fp8":
        remedy = "" if wrong else "; 'fp8' uses them"
        meant = wrong or "floats of 8 bits and static scales by tensor"
        logger.info("kv_cache_dtype %r ignores kv_cache_scheme: %s%s", kv_dtype, meant, remedy)
    elif wrong:
        raise ModelError(
            f"kv_cache_dtype is 'fp8', which takes floats of 8 bits and static scales by tensor, "
            f"but the checkpoint's kv_cache_scheme has {wrong}; use 'int8', which takes no scales "
            "of a checkpoint, or 'auto'"
        )


def _unlike_fp8(scheme: Any) -> str:
    """Returns the fields of a scheme that differ from those of E4M3, such as "type 'int'"."""
    if scheme == _STATIC:
        return ""
    if not isinstance(scheme, Mapping):
        return repr(scheme)[:40]
    found = arguments(scheme)
    return ", ".join(f"{k} {found[k]!r:.40}" for k, served in _FP8.items() if found[k] != served)


def is_attention_scale(name: str) -> bool:
    """Says whether a tensor is a scale of attention: of K or V, or of what is not quantised here,
    queries and weights of keys."""
    return _NAME.search(name) is not None


def read_kv_scales(stored: Mapping[str, StoredTensor], num_layers: int) -> KVScales:
    """Returns the scales of K and of V in each layer, 1.0 for what has none, which is logged.

    Raises ModelError for scales of single heads, and for one that is no positive number.
    """
    found: dict[tuple[int, str], float] = {}
    for name, tensor in stored.items():
        if (match := _NAME.search(name)) is not None:
            for side in {*"kv"} & {*(match["sides"] or match["side"] or "")}:
                found[int(match["layer"]), side] = _scale(name, tensor)
    wanted = [(layer, side) for layer in range(num_layers) for side in "kv"]
    if missing := sum(each not in found for each in wanted):
        logger.warning(
            "kv_cache_dtype is 'fp8', and the checkpoint has %s of the %d scales of K and V: the "
            "others are 1.0, and what exceeds 448 is stored as 448",
            len(wanted) - missing or "none",
            len(wanted),
        )
    return tuple(
        (found.get((layer, "k"), 1.0), found.get((layer, "v"), 1.0)) for layer in range(num_layers)
    )


def _scale(name: str, tensor: StoredTensor) -> float:
    if math.prod(tensor.shape) != 1:
        raise ModelError(
            f"{name} has shape {tensor.shape}, but K and V of a layer take one scale each; use "
            "kv_cache_dtype 'auto'"
        )
    scale = float(to_float32(tensor.read()).reshape(()))
    if not 0 < scale < math.inf:
        raise ModelError(f"{name} is {scale}, not a positive number; use kv_cache_dtype 'auto'")
    return scale
