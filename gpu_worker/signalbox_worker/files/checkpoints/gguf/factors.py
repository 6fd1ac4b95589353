"""Factors of matrices in NVFP4, which stand beside them: `attn_q.scale` is that of `attn_q.weight`.

Of experts each has its own. The factors of inputs in 4 bits (`attn_q.input_scale`) are left out, as
no program computes such inputs.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
from gguf.constants import GGMLQuantizationType

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.reader import GGUFTensor

_OF_WEIGHT, _OF_INPUTS = ".scale", ".input_scale"


def with_factors(
    tensors: Mapping[str, GGUFTensor], others: Collection[str]
) -> Iterator[GGUFTensor]:
    """Yields the tensors but the factors, which are at their matrices.

    Args:
        others: names of tensors of a layer that are called so and are weights themselves.
    """
    for name, stored in tensors.items():
        base = name.rpartition(".")[0]
        is_weight = f"{base.rpartition('.')[2]}{_OF_WEIGHT}" in others
        has_factors = _is_nvfp4(tensors.get(f"{base}.weight")) and not is_weight
        if has_factors and name.endswith((_OF_WEIGHT, _OF_INPUTS)):
            continue
        beside = tensors.get(f"{base}{_OF_WEIGHT}") if name.endswith(".weight") else None
        if has_factors and beside is not None:
            stored = replace(stored, factors=_read(beside, stored))
        yield stored


def _is_nvfp4(stored: GGUFTensor | None) -> bool:
    return stored is not None and stored.type is GGMLQuantizationType.NVFP4


def _read(beside: GGUFTensor, stored: GGUFTensor) -> tuple[float, ...]:
    count = stored.shape[0] if len(stored.shape) > 2 else 1
    if beside.type is not GGMLQuantizationType.F32 or beside.shape != (count,):
        raise ModelError(
            f"{beside.path} has {beside.name} in {beside.type.name} of shape {beside.shape}, no "
            f"factor for each of {count} matrices; fetch it again"
        )
    return tuple(beside.data.view(np.float32).tolist())
