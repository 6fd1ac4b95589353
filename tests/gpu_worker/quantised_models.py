"""Tiny models whose checkpoints are quantised, and the same in transformers, decoded."""

import json
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.gpu_worker.model_runners import WEIGHTS, remove_files
from tests.gpu_worker.rounded_products import round_inputs
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

Encode = Callable[..., tuple[dict[str, Tensor], Tensor]]
"""Takes a matrix, and perhaps its `name`; returns the tensors that stand for it, by the ends of
their names, and what they stand for in float32."""


def save_quantised(
    path: Path,
    family: str,
    encode: Encode,
    config: dict[str, Any],
    *,
    stays: str = "",
    extra: str = "-",
    **overrides: Any,
) -> Any:
    """Saves a random model with the matrices of its layers encoded; returns the decoded model.

    Its layers round their inputs as the checkpoint prescribes.

    Args:
        config: the checkpoint's quantization_config.
        stays: a part of the names of matrices that stay as they are.
        extra: name of another matrix that is encoded.
    """
    reference = make_model(path, family, **SHAPE | overrides)
    remove_files(path, *WEIGHTS)
    tensors = {}
    for name, parameter in reference.state_dict().items():
        base, _, end = name.rpartition(".")
        is_matrix = base.endswith(("_proj", extra)) and end == "weight"
        is_matrix = is_matrix and not (stays and stays in name)
        if not is_matrix:
            tensors[name] = parameter.contiguous()
            continue
        takes_name = "name" in signature(encode).parameters
        parts, decoded = encode(parameter, name=name) if takes_name else encode(parameter)
        tensors |= {f"{base}.{each}": tensor.contiguous() for each, tensor in parts.items()}
        parameter.copy_(decoded)
    if reference.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, path / "model.safetensors")
    round_inputs(reference, config, stays)
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


W8A8: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def in_w8a8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scales = (weight.abs().amax(dim=1, keepdim=True) / 127).bfloat16()
    codes = (weight / scales.float()).round().clamp(-128, 127)
    return {"weight": codes.to(torch.int8), "weight_scale": scales}, codes * scales.float()


def by_groups(
    weight: Tensor,
    group_size: int,
    *,
    bits: int = 4,
    is_symmetric: bool = False,
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rounds to few bits in groups; returns codes, zero points, scales, and what they stand for.

    Args:
        order: the columns in the order of their groups.
    """
    columns = weight if order is None else weight[:, order]
    groups, most = [part.float() for part in torch.split(columns, group_size, dim=1)], 2**bits - 1
    codes, zeros, scales = [], [], []
    for group in groups:
        high, low = group.amax(dim=1).clamp(min=0), group.amin(dim=1).clamp(max=0)
        if is_symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / most).half()
        zero = torch.full_like(scale, (most + 1) // 2) if is_symmetric else (-low / scale).round()
        coded = (group / scale[:, None].float()).round() + zero[:, None]
        codes.append(coded.clamp(0, most))
        zeros.append(zero)
        scales.append(scale)
    decoded = torch.cat(
        [
            (code - zero[:, None]).float() * scale[:, None].float()
            for code, zero, scale in zip(codes, zeros, scales, strict=True)
        ],
        dim=1,
    )
    all_codes = torch.cat(codes, dim=1)
    if order is not None:
        back = order.argsort()
        all_codes, decoded = all_codes[:, back], decoded[:, back]
    of_groups = torch.stack(zeros).long(), torch.stack(scales)
    return all_codes.long(), *of_groups, decoded


def _words(codes: Tensor, places: list[int]) -> Tensor:
    """Packs the last dimension in words; code i of a word goes to `places[i]`."""
    parts = codes.reshape(*codes.shape[:-1], -1, len(places))
    words = sum(parts[..., i] << 32 // len(places) * place for i, place in enumerate(places))
    assert isinstance(words, Tensor)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def in_awq(weight: Tensor, group_size: int) -> tuple[dict[str, Tensor], Tensor]:
    codes, zeros, scales, decoded = by_groups(weight, group_size)
    places = [0, 4, 1, 5, 2, 6, 3, 7]
    packed = {"qweight": _words(codes.T, places), "qzeros": _words(zeros, places)}
    return packed | {"scales": scales}, decoded


def in_gptq(
    weight: Tensor,
    group_size: int,
    *,
    bits: int = 4,
    is_second: bool = False,
    is_symmetric: bool = False,
    is_reordered: bool = False,
) -> tuple[dict[str, Tensor], Tensor]:
    num_columns = weight.shape[1]
    # the order is that of the activations, so that all matrices that multiply them share it
    shuffled = torch.randperm(num_columns, generator=torch.Generator().manual_seed(num_columns))
    order = shuffled if is_reordered else None
    codes, zeros, scales, decoded = by_groups(
        weight, group_size, bits=bits, is_symmetric=is_symmetric, order=order
    )
    index = torch.arange(num_columns) // group_size
    places, ones = [*range(32 // bits)], 0x11111111 if bits == 4 else 0x01010101
    packed = {
        "qweight": _words(codes, places).T,
        "qzeros": _words(zeros, places) - (0 if is_second else ones),
        "scales": scales,
        "g_idx": (index if order is None else index[order.argsort()]).to(torch.int32),
    }
    return packed, decoded


def make_mxfp4(path: Path) -> None:
    """Saves a GPT-OSS with random codes and scales in the layout that it is published in."""
    make_model(path, "gpt-oss", hidden_size=64, intermediate_size=96)
    generator, tensors = torch.Generator().manual_seed(1), dict[str, Tensor]()
    for shard in path.glob("*.safetensors"):
        tensors |= load_file(shard)
    remove_files(path, *WEIGHTS)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        scales = (experts, rows, columns // 32)
        for end, size, low, high in (
            ("blocks", (*scales, 16), 0, 256),
            ("scales", scales, 121, 126),
        ):
            values = torch.randint(low, high, size, dtype=torch.uint8, generator=generator)
            tensors[f"{name}_{end}"] = values
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    left_out = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": left_out,
    }
    (path / "config.json").write_text(json.dumps(config))
