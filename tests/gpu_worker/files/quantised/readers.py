"""Dequantise a checkpoint, with a library that did not write it where there is one.

Products with scales are float32's, also where a library would round them to 16 bits.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def read_by_compressed_tensors(folder: Path, readers: Path) -> dict[str, Tensor]:
    """By its choice of schemes and its decompression. transformers 5.23.0 lays out no packed zero
    points, and takes one of several groups for all modules."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4 import base
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    in_float32 = partial(base.unpack_fp4_from_uint8, dtype=torch.float32)
    model = LlamaForCausalLM(float_config(folder))
    apply_quantization_config(model, QuantizationConfig.model_validate(described(folder)))
    found = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            own = {key for key in found if key.rpartition(".")[0] == name}
            tensors = {key.rpartition(".")[2]: found.pop(key) for key in own}
            if tensors["weight_scale"].is_floating_point():
                tensors["weight_scale"] = tensors["weight_scale"].float()
            compressor = BaseCompressor.get_value_from_registry(scheme.format)
            with patch.object(base, "unpack_fp4_from_uint8", in_float32):
                found[f"{name}.weight"] = compressor.decompress(tensors, scheme)["weight"]
    return {name: weight.float() for name, weight in found.items()}


def read_by_converter(folder: Path, readers: Path) -> dict[str, Tensor]:
    from compressed_tensors.entrypoints.convert.converters import FP8BlockDequantizer

    converter = FP8BlockDequantizer(
        targets=["re:.*_proj$"],
        weight_block_size=described(folder)["weight_block_size"],
        dtype=torch.float32,
    )
    found = converter.process(load_file(folder / "model.safetensors"))
    return {name: weight.float() for name, weight in found.items()}


def read_by_bitsandbytes(folder: Path, readers: Path) -> dict[str, Tensor]:
    """In rows of one block each: 0.50.2 on a CPU takes a block to end where a row does."""
    from bitsandbytes import functional, nn

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = dict(model.named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear4bit):
            state = module.weight.quant_state
            shape = state.shape
            state.shape = torch.Size((shape.numel() // state.blocksize, state.blocksize))
            state.dtype = torch.float32
            flat = functional.dequantize_4bit(module.weight.data, state)
            found[f"{name}.weight"] = flat.reshape(shape)
        elif isinstance(module, nn.Linear8bitLt):
            codes, scales = module.weight.data, module.weight.SCB
            found[f"{name}.weight"] = functional.int8_vectorwise_dequant(codes, scales)
    return {name: weight.detach().float() for name, weight in found.items()}


def read_by_autoawq(folder: Path, readers: Path) -> dict[str, Tensor]:
    sys.path.append(str(next(readers.glob("autoawq*/awq/utils"))))
    from packing_utils import dequantize_gemm

    size = described(folder)["group_size"]

    def dequantise(qweight: Tensor, qzeros: Tensor, scales: Tensor, _: None) -> Tensor:
        unit: Tensor = dequantize_gemm(qweight, qzeros, scales.float(), 4, size)
        return unit

    return with_dequantised(folder, dequantise)


def read_by_autogptq(folder: Path, readers: Path) -> dict[str, Tensor]:
    """Multiplies the unit matrix, as AutoGPTQ's layer does on a CPU."""
    sys.path.append(str(readers / "auto_gptq/nn_modules/qlinear"))  # without its models
    from qlinear_cuda import QuantLinear

    def dequantise(qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor) -> Tensor:
        rows, columns = scales.shape[1], len(g_idx)
        bits = 32 * len(qweight) // columns
        layer = QuantLinear(bits, columns // len(scales), columns, rows, False)
        layer.load_state_dict(
            {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": g_idx}
        )
        layer.scales = layer.scales.float()
        unit: Tensor = layer(torch.eye(columns))
        return unit

    return with_dequantised(folder, dequantise)


def read_by_gptqmodel(folder: Path, readers: Path) -> dict[str, Tensor]:
    os.environ["GPTQMODEL_CPU_WORKERS"] = "2"
    from gptqmodel import BACKEND, GPTQModel

    model = GPTQModel.load(
        str(folder), backend=BACKEND.GPTQ_TORCH, device="cpu", dtype=torch.float16
    ).model
    found = dict(model.named_parameters())
    for name, module in model.named_modules():
        if hasattr(module, "dequantize_weight"):
            module.scales = module.scales.float()
            found[f"{name}.weight"] = module.dequantize_weight().T
    return {name: weight.detach().float() for name, weight in found.items()}


def described(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def float_config(folder: Path) -> Any:
    config = LlamaConfig.from_pretrained(folder)
    del config.quantization_config
    return config


def with_dequantised(folder: Path, dequantise: Callable[..., Tensor]) -> dict[str, Tensor]:
    """Puts [in, out] matrices where a checkpoint has the four tensors of AWQ or GPTQ."""
    tensors = load_file(folder / "model.safetensors")
    found = {}
    for name, tensor in tensors.items():
        base, _, end = name.rpartition(".")
        if end == "qweight":
            ends = ("qweight", "qzeros", "scales", "g_idx")
            found[f"{base}.weight"] = dequantise(*(tensors.get(f"{base}.{e}") for e in ends)).T
        elif end not in ("qzeros", "scales", "g_idx"):
            found[name] = tensor
    return {name: weight.float() for name, weight in found.items()}
