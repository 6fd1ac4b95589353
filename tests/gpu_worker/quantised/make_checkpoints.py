"""Makes the checkpoints beside this file with the libraries that people quantise models with.

    python make_checkpoints.py FOLDER [NAME...]

In an environment of its own, with llmcompressor, gptqmodel and bitsandbytes beside torch and
transformers. A tiny random model is quantised by the library of each form, read again by
transformers, and its logits for a few tokens are written beside it: `expected.json`. Versions that
made what is here: llmcompressor 0.14.0.1, compressed-tensors 0.20.0, gptqmodel 7.7.0, bitsandbytes
0.50.2, transformers 5.23.0, torch 2.13.0.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

PROMPT = [3, 17, 41, 8, 22, 30, 5, 12, 46, 1, 9, 33]
KEPT = ("config.json", "model.safetensors")


def make_base(folder: Path, dtype: torch.dtype) -> Path:
    """A random model, whose widths no group of 128 divides."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    return folder


def compress(groups: dict[str, Any], **fields: Any) -> Callable[[Path, Path], None]:
    """Rounds to nearest by llm-compressor."""

    def make(base: Path, folder: Path) -> None:
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier

        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        scheme = {"config_groups": groups} if isinstance(groups, dict) else groups
        calibration = fields.pop("calibration", None)
        recipe = QuantizationModifier(**scheme, **fields)
        oneshot(model=model, recipe=recipe, dataset=calibration)
        model.save_pretrained(folder, save_compressed=True)

    return make


def integers(bits: int, **weights: Any) -> dict[str, Any]:
    usual = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group"}
    return {"targets": ["Linear"], "weights": usual | weights}


BY_TOKEN = {"type": "int", "num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
HEAD = {"ignore": ["lm_head"]}
MIXED = {
    "group_0": integers(4, group_size=32) | {"targets": ["Linear"]},
    "group_1": integers(8, strategy="channel") | {"targets": ["re:.*v_proj$", "re:.*down_proj$"]},
}
FORMS: dict[str, tuple[torch.dtype, Callable[[Path, Path], None]]] = {
    "w4a16": (torch.bfloat16, compress({"group_0": integers(4, group_size=32)}, **HEAD)),
    "w4a16_asymmetric": (
        torch.float16,
        compress({"group_0": integers(4, group_size=32, symmetric=False)}, **HEAD),
    ),
    "w8a16": (torch.bfloat16, compress({"group_0": integers(8, strategy="channel")}, **HEAD)),
    "mixed": (torch.bfloat16, compress(MIXED, ignore=["re:.*gate_proj", "lm_head"])),
    "w8a8": (
        torch.bfloat16,
        compress(
            {"group_0": integers(8, strategy="channel") | {"input_activations": BY_TOKEN}}, **HEAD
        ),
    ),
}


def logits_of(folder: Path) -> list[list[float]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0]
    return [[round(float(value), 5) for value in row] for row in logits]


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:] or [*FORMS]
    for name in names:
        dtype, make = FORMS[name]
        base = make_base(folder / "base", dtype)
        shutil.rmtree(folder / name, ignore_errors=True)
        make(base, folder / name)
        (folder / name / "expected.json").write_text(json.dumps(logits_of(folder / name)))
        for file in (folder / name).iterdir():
            if file.name not in (*KEPT, "expected.json", "quantize_config.json"):
                file.unlink()
        tensors = load_file(folder / name / KEPT[1])
        save_file(tensors, folder / name / KEPT[1])  # with a short header
        shutil.rmtree(folder / "base")


if __name__ == "__main__":
    main()
