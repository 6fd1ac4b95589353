"""Tiny models whose checkpoints are quantised, and the same in transformers, decoded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.gpu_worker.model_runners import WEIGHTS, remove_files
from tests.gpu_worker.tiny_models import make_model

SHAPE = {
    "hidden_size": 192,  # a block of 128 and a half
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.05,
}
E4M3_MAX = 448.0
BLOCK = 128

Encode = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
"""Takes a matrix; returns the tensors that stand for it, by the ends of their names, and what they
stand for in float32."""


def save_quantised(
    path: Path,
    family: str,
    encode: Encode,
    config: dict[str, Any],
    *,
    stays: str = "",
    **overrides: Any,
) -> Any:
    """Saves a random model with the matrices of its layers encoded; returns the decoded model.

    Args:
        config: the checkpoint's quantization_config.
        stays: a part of the names of matrices that stay as they are.
    """
    reference = make_model(path, family, **SHAPE | overrides)
    remove_files(path, *WEIGHTS)
    tensors = {}
    for name, parameter in reference.state_dict().items():
        base, _, end = name.rpartition(".")
        is_matrix = base.endswith("_proj") and end == "weight" and not (stays and stays in name)
        if not is_matrix:
            tensors[name] = parameter.contiguous()
            continue
        parts, decoded = encode(parameter)
        tensors |= {f"{base}.{each}": tensor.contiguous() for each, tensor in parts.items()}
        parameter.copy_(decoded)
    if reference.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, path / "model.safetensors")
    described = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**described, "quantization_config": config}))
    return reference


def by_matrix(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return _fp8(weight, weight.abs().amax() / E4M3_MAX)


def by_row(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return _fp8(weight, weight.abs().amax(dim=1, keepdim=True) / E4M3_MAX)


def _fp8(weight: Tensor, scale: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def by_block(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    codes, decoded = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    starts = [range(0, size, BLOCK) for size in weight.shape]
    scales = torch.empty(len(starts[0]), len(starts[1]), dtype=torch.bfloat16)
    for i, row in enumerate(starts[0]):
        for j, column in enumerate(starts[1]):
            block = (slice(row, row + BLOCK), slice(column, column + BLOCK))
            scales[i, j] = 1.01 * weight[block].abs().amax() / E4M3_MAX  # rounds to above
            codes[block] = (weight[block] / scales[i, j].float()).to(torch.float8_e4m3fn)
            decoded[block] = codes[block].float() * scales[i, j].float()
    return {"weight": codes, "weight_scale_inv": scales}, decoded
