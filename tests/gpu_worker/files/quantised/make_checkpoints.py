"""Makes the folders of checkpoints/ with the libraries that people quantise models with.

    python -m tests.gpu_worker.files.quantised.make_checkpoints READERS [NAME...]

In an environment of its own, with llmcompressor, gptqmodel and bitsandbytes beside torch and
transformers. READERS is a folder with the sources of autoawq and auto_gptq, which are imported
without being installed:

    pip download --no-deps autoawq==0.2.9 auto-gptq==0.7.1

A tiny random model is quantised by one library and dequantised by another one where there is one
(`FORMS`). Beside it, expected.json has the logits of a float32 model with these matrices, whose
activations are not rounded, and a checksum of each matrix. Versions that made what is here:
llmcompressor 0.14.0.1, compressed-tensors 0.20.0, gptqmodel 7.7.0, bitsandbytes 0.50.2,
transformers 5.23.0, torch 2.13.0.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.gpu_worker.files.quantised.readers import (
    float_config,
    read_by_autoawq,
    read_by_autogptq,
    read_by_bitsandbytes,
    read_by_compressed_tensors,
    read_by_converter,
    read_by_gptqmodel,
)
from tests.gpu_worker.files.quantised.writers import (
    OF_AWQ,
    OF_FP8,
    Make,
    compress,
    make_base,
    with_bitsandbytes,
    with_gptqmodel,
    with_transformers,
)

PROMPT = [3, 17, 41, 8, 22, 30, 5, 12, 46, 1, 9, 33]
CHECKPOINTS = Path(__file__).with_name("checkpoints")


def weights(bits: int, kind: str = "int", **others: Any) -> dict[str, Any]:
    usual = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "group"}
    by_group = {} if "strategy" in others else {"group_size": 32}
    return {"targets": ["Linear"], "weights": usual | by_group | others}


def rounded(kind: str, **others: Any) -> dict[str, Any]:
    """The scheme of activations."""
    usual = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
    return {"input_activations": usual | others}


BY_CHANNEL = {"strategy": "channel"}
STATIC = {"strategy": "tensor", "dynamic": False}
MIXED = [
    weights(4) | {"targets": ["Linear"]},
    weights(8, **BY_CHANNEL) | {"targets": ["re:.*v_proj$", "re:.*layers.1.mlp.down_proj$"]},
]
BLOCKS = {"strategy": "block", "block_structure": [128, 128]}
MXFP4 = {"group_size": 32, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
NVFP4 = {"strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
BF16, F16 = torch.bfloat16, torch.float16
ORDERED = {"bits": 4, "group_size": 32, "desc_act": True, "sym": False}
DYNAMIC = {r"-:.*\.k_proj": {}, r"+:.*\.v_proj": {"bits": 8, "group_size": 64}}
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
Read = Callable[[Path, Path], dict[str, Tensor]]
FORMS: dict[str, tuple[torch.dtype, Make, Read]] = {
    "ct_w4a16": (BF16, compress(weights(4)), read_by_compressed_tensors),
    "ct_w4a16_asymmetric": (F16, compress(weights(4, symmetric=False)), read_by_compressed_tensors),
    "ct_w4a16_channel": (BF16, compress(weights(4, **BY_CHANNEL)), read_by_compressed_tensors),
    "ct_w8a16": (BF16, compress(weights(8)), read_by_compressed_tensors),
    "ct_mixed": (BF16, compress(MIXED, ignore=("re:.*gate_proj",)), read_by_compressed_tensors),
    "ct_w8a8": (
        BF16,
        compress(weights(8, **BY_CHANNEL) | rounded("int")),
        read_by_compressed_tensors,
    ),
    "ct_w8a8_static": (
        BF16,
        compress(weights(8, **BY_CHANNEL) | rounded("int", symmetric=False, **STATIC)),
        read_by_compressed_tensors,
    ),
    "ct_fp8_static": (
        BF16,
        compress(weights(8, "float", strategy="tensor") | rounded("float", **STATIC)),
        read_by_compressed_tensors,
    ),
    "ct_fp8_dynamic": (
        BF16,
        compress(weights(8, "float", **BY_CHANNEL) | rounded("float")),
        read_by_compressed_tensors,
    ),
    "ct_fp8_block": (
        BF16,
        compress(
            weights(8, "float", **BLOCKS) | rounded("float", strategy="group", group_size=128)
        ),
        read_by_compressed_tensors,
    ),
    "ct_mxfp4": (BF16, compress(weights(4, "float", **MXFP4)), read_by_compressed_tensors),
    "ct_nvfp4": (
        BF16,
        compress(
            weights(4, "float", **NVFP4)
            | rounded("float", num_bits=4, **NVFP4 | {"dynamic": "local"})
        ),
        read_by_compressed_tensors,
    ),
    "gptq_v1": (
        F16,
        with_gptqmodel("GPTQConfig", bits=4, group_size=32, sym=True),
        read_by_autogptq,
    ),
    "gptq_v1_actorder": (F16, with_gptqmodel("GPTQConfig", **ORDERED), read_by_autogptq),
    "gptq_v1_w8": (
        F16,
        with_gptqmodel("GPTQConfig", bits=8, group_size=-1, act_group_aware=False),
        read_by_autogptq,
    ),
    "gptq_v2": (F16, with_gptqmodel("GPTQConfig", format="gptq_v2", **ORDERED), read_by_gptqmodel),
    "gptq_dynamic": (
        F16,
        with_gptqmodel("GPTQConfig", bits=4, group_size=32, dynamic=DYNAMIC),
        read_by_gptqmodel,
    ),
    "awq": (F16, with_gptqmodel("AWQConfig", bits=4, group_size=32, sym=False), read_by_autoawq),
    "awq_symmetric": (F16, with_gptqmodel("AWQConfig", bits=4, group_size=32), read_by_autoawq),
    "fp8_block": (BF16, with_transformers(), read_by_converter),
    "bnb_nf4": (BF16, with_bitsandbytes(**NF4), read_by_bitsandbytes),
    "bnb_nf4_nested": (
        BF16,
        with_bitsandbytes(**NF4, bnb_4bit_use_double_quant=True, bnb_4bit_quant_storage="bfloat16"),
        read_by_bitsandbytes,
    ),
    "bnb_fp4": (BF16, with_bitsandbytes(load_in_4bit=True), read_by_bitsandbytes),
    "bnb_int8": (F16, with_bitsandbytes(load_in_8bit=True), read_by_bitsandbytes),
}


def checksum(matrix: Tensor) -> float:
    """A sum with a weight for each place."""
    values = matrix.double().flatten()
    return float(values @ torch.arange(len(values)).double().cos())


def expected(folder: Path, matrices: dict[str, Tensor]) -> dict[str, Any]:
    model = LlamaForCausalLM(float_config(folder)).float().eval()
    model.load_state_dict(matrices)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0]
    return {
        "logits": [[round(float(value), 5) for value in row] for row in logits],
        "matrices": {name: checksum(one) for name, one in matrices.items() if one.dim() == 2},
    }


def make_one(name: str, readers: Path) -> None:
    dtype, make, read_by = FORMS[name]
    with tempfile.TemporaryDirectory() as temporary:
        base, made = Path(temporary, "base"), Path(temporary, "made")
        widths = OF_AWQ if name.startswith("awq") else OF_FP8 if name == "fp8_block" else {}
        make(base, made, make_base(base, dtype, **widths))
        tensors = load_file(made / "model.safetensors")
        target = CHECKPOINTS / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        save_file(tensors, target / "model.safetensors")  # with a short header
        shutil.copy(made / "config.json", target)
        found = expected(made, read_by(made, readers))
        (target / "expected.json").write_text(json.dumps(found))


def main() -> None:
    for name in sys.argv[2:] or [*FORMS]:
        make_one(name, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
