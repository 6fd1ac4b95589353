"""Writes rounded.json: what compressed-tensors makes of activations that a checkpoint rounds.

    python -m tests.gpu_worker.files.quantised.make_rounded

In an environment of its own, with compressed-tensors beside torch and transformers. The file has
the values of the codes of `make_rows`, for each scheme of SCHEMES, and for each checkpoint of
CHECKPOINTS and CUT the log probabilities of short prompts by the forward of compressed-tensors in
float32, and by that of transformers, which does not round. Versions that made what is here:
compressed-tensors 0.20.0, transformers 5.23.0, torch 2.13.0.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.gpu_worker.files.quantised.readers import (
    described,
    float_config,
    read_by_compressed_tensors,
    read_by_converter,
)
from tests.gpu_worker.rounded_products import reference_log_probabilities

ROUNDED = Path(__file__).with_name("rounded.json")
FOLDER = Path(__file__).with_name("checkpoints")
CHECKPOINTS = ("ct_w8a8", "ct_w8a8_static", "ct_fp8_static", "ct_fp8_dynamic", "fp8_block")
CUT = ("ct_fp8_static, q_proj", "ct_fp8_static, k_proj")
"""Checkpoints of which a matrix of the first layer has a scale that cuts nearly all activations."""
STATIC = {"strategy": "tensor", "dynamic": False}
SCHEMES: dict[str, dict[str, Any]] = {
    "int8 of tokens": {"type": "int", "strategy": "token", "dynamic": True},
    "int8 of tokens with zero points": {
        "type": "int",
        "strategy": "token",
        "dynamic": True,
        "symmetric": False,
    },
    "int8 of groups": {"type": "int", "strategy": "group", "group_size": 32, "dynamic": True},
    "static int8": STATIC | {"type": "int"},
    "static int8 with a zero point": STATIC | {"type": "int", "symmetric": False},
    "fp8 of tokens": {"type": "float", "strategy": "token", "dynamic": True},
    "fp8 of groups": {"type": "float", "strategy": "group", "group_size": 32, "dynamic": True},
    "static fp8": STATIC | {"type": "float"},
}
SCALES = {"int": 0.0125, "float": 0.004}
"""Static ones, which cut the largest values."""
ZERO_POINT = -7


def make_rows() -> Tensor:
    """Rows of different sizes, one of zeros, and one of one sign."""
    places = torch.arange(4 * 96, dtype=torch.float64).reshape(4, 96)
    rows = ((places * 0.7321).sin() * (places % 7 + 0.1)).float() / 3
    return torch.stack([rows[0], rows[1] * 1e-3, rows[2] * 0, rows[3].abs() * 3])


def described_values(rows: Tensor, scheme: dict[str, Any]) -> Tensor:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationStatus
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize

    args = QuantizationArgs.model_validate(scheme | {"num_bits": 8})
    layer = torch.nn.Linear(rows.shape[1], 1)
    layer.quantization_status = QuantizationStatus.COMPRESSED  # type: ignore[assignment]
    layer.input_scale = torch.nn.Parameter(torch.tensor([SCALES[scheme["type"]]]))
    if not args.symmetric:
        zero = torch.tensor([ZERO_POINT], dtype=torch.int8)
        layer.input_zero_point = torch.nn.Parameter(zero, requires_grad=False)
    values: Tensor = forward_quantize(layer, rows[None], "input", args)[0]  # of one sequence
    return values


def copy_checkpoint(name: str, folder: Path) -> None:
    """Copies one of CHECKPOINTS, or makes one of CUT."""
    checkpoint, _, part = name.partition(", ")
    shutil.copytree(FOLDER / checkpoint, folder, dirs_exist_ok=True)
    if part:
        tensors = load_file(folder / "model.safetensors")
        tensors[f"model.layers.0.self_attn.{part}.input_scale"] /= 64
        save_file(tensors, folder / "model.safetensors")


def forwards(folder: Path) -> tuple[Tensor, Tensor]:
    """Returns what compressed-tensors and transformers make of the decoded matrices."""
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationStatus,
        apply_quantization_config,
    )

    is_ours = described(folder)["quant_method"] == "compressed-tensors"
    read = read_by_compressed_tensors if is_ours else read_by_converter
    ends = ("input_scale", "input_zero_point")
    matrices = {n: one for n, one in read(folder, folder).items() if not n.endswith(ends)}
    model = LlamaForCausalLM(float_config(folder)).float().eval()
    model.load_state_dict(matrices)
    unrounded = reference_log_probabilities(model)
    if is_ours:
        config = QuantizationConfig.model_validate(described(folder))
    else:
        by_group = SCHEMES["fp8 of groups"] | {"group_size": 128, "num_bits": 8}
        activations = QuantizationArgs.model_validate(by_group).model_dump()
        group = {"targets": ["Linear"], "input_activations": activations}
        config = QuantizationConfig.model_validate(
            {"config_groups": {"0": group}, "ignore": ["lm_head"]}
        )
    apply_quantization_config(model, config)
    model.load_state_dict(matrices, strict=False)
    stored = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        module.quantization_status = QuantizationStatus.COMPRESSED  # whose weights are decoded
        for end in ends:
            if f"{name}.{end}" in stored:
                value = stored[f"{name}.{end}"]
                value = value.float() if value.is_floating_point() else value
                setattr(module, end, torch.nn.Parameter(value, requires_grad=False))
    return reference_log_probabilities(model), unrounded


def main() -> None:
    rows = make_rows()
    values = {name: described_values(rows, one).tolist() for name, one in SCHEMES.items()}
    as_rounded, unrounded = {}, {}
    for name in (*CHECKPOINTS, *CUT):
        with tempfile.TemporaryDirectory() as folder:
            copy_checkpoint(name, Path(folder))
            found = forwards(Path(folder))
        as_rounded[name], unrounded[name] = (each.tolist() for each in found)
    made = {
        "values": values,
        "log probabilities": as_rounded,
        "log probabilities without rounding": {name: unrounded[name] for name in CHECKPOINTS},
    }
    ROUNDED.write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
