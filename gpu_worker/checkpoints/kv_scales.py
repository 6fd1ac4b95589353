"""Scales of K and V that a checkpoint brings for a cache in E4M3, by layer.

A value is code times scale. llm-compressor writes `self_attn.k_scale`, ModelOpt
`self_attn.k_proj.k_scale`, Quark and older compressed-tensors `self_attn.k_proj.output_scale`, and
AutoFP8 one `self_attn.kv_scale` for both.
"""

import logging
import math
import re
from collections.abc import Mapping

from gpu_worker.checkpoints.stored_tensor import StoredTensor
from gpu_worker.config import ModelError
from signalbox_kernels.floats import to_float32

logger = logging.getLogger(__name__)

KVScales = tuple[tuple[float, float], ...]
"""[num_layers]: the scales of K and of V."""

_NAME = re.compile(
    r"\blayers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:attn\.|qkv_proj\.|[qkv]_proj\.)?(?P<sides>q|k|v|kv|prob)_scale"
    r"|(?P<side>[qkv])_proj\.output_scale|prob_output_scale)$"
)


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
