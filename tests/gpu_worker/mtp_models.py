"""Tiny models with an MTP layer, of random weights or of weights that predict rightly."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_worker.models.mixture_config import MoeConfig, glm4_moe_config
from signalbox_worker.runner.mtp.mtp_tensors import with_mtp_layer
from signalbox_worker.runner.native.weight_shapes import OF_STATES, OF_TOKENS, weight_shapes
from tests.gpu_worker.tiny_models import SHAPE, make_tokenizer, random_values, write_tensors

GLM: dict[str, Any] = {
    **SHAPE,
    "architectures": ["Glm4MoeForCausalLM"],
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "norm_topk_prob": True,
    "use_qk_norm": True,
    "num_nextn_predict_layers": 1,
}
_NO_RESULT = ("o_proj.weight", "down_proj.weight")
"""Ends of the names of matrices whose product is added to hidden states."""

Tensors = dict[str, NDArray[np.float32]]


def glm_config(**fields: Any) -> MoeConfig:
    return glm4_moe_config(GLM | fields)


def make_glm(path: Path, *, is_right: bool = False, **fields: Any) -> Tensors:
    """Saves a GLM-4 MoE with an MTP layer, without PyTorch; returns its tensors.

    Args:
        is_right: the next token depends on the last one alone, and the layer predicts it.
        fields: of its configuration, instead of those of `GLM`.
    """
    path.mkdir(exist_ok=True)
    config = glm_config(**fields)
    shapes = weight_shapes(with_mtp_layer(config))
    tensors = random_values(shapes, np.random.default_rng(0))
    prefix = f"model.layers.{config.num_layers}."
    halves = [tensors.pop(f"{prefix}{name}") for name in (OF_TOKENS, OF_STATES)]
    if is_right:
        _simplify(tensors, prefix)
        halves = [np.eye(config.hidden_size, dtype=np.float32), 0 * halves[1]]
    tensors[f"{prefix}eh_proj.weight"] = np.concatenate(halves, axis=1)
    _save(path, GLM | fields, tensors)
    return tensors


def _simplify(tensors: Tensors, prefix: str) -> None:
    """Lets no layer add to hidden states, so that they are the embeddings."""
    for name, values in tensors.items():
        if name.endswith(_NO_RESULT):
            tensors[name] = 0 * values
    tensors[f"{prefix}enorm.weight"] = np.ones_like(tensors[f"{prefix}enorm.weight"])
    tensors[f"{prefix}shared_head.norm.weight"] = tensors["model.norm.weight"]


def _save(path: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    (path / "config.json").write_text(json.dumps(config))
    write_tensors(path / "model.safetensors", tensors)
    make_tokenizer(path)
