"""Quantise a tiny random model, each with the library of its form."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast as TokenizerFast

VOCAB = 48
NARROW = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OF_AWQ = {"num_key_value_heads": 4, "intermediate_size": 64}
"""Its search goes through 64 outputs at a time."""
OF_FP8 = dict.fromkeys(("hidden_size", "intermediate_size"), 128) | {"num_hidden_layers": 1}
OF_FP8 |= dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 8)
"""transformers leaves matrices in floats that blocks do not fill."""


def make_base(folder: Path, dtype: torch.dtype, **widths: int) -> Any:
    """Saves a random model, whose widths no group of 128 divides, and returns its tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        head_dim=16,
        max_position_embeddings=64,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=2,
        **NARROW | widths,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    tokenizer = TokenizerFast(tokenizer_object=words, eos_token="t2", pad_token="t2")
    tokenizer.save_pretrained(folder)
    return tokenizer


def calibration() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    rows: list[list[int]] = torch.randint(3, VOCAB, (16, 32), generator=generator).tolist()
    return rows


OF_GPTQMODEL = {"device": "cpu", "offload_to_disk": False}
Make = Callable[[Path, Path, Any], None]
"""Takes the folder of the model, that of the checkpoint, and the tokenizer."""


def compress(groups: Any, *, ignore: tuple[str, ...] = ("lm_head",)) -> Make:
    """llm-compressor, to nearest."""

    def make(base: Path, folder: Path, tokenizer: Any) -> None:
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier

        named = groups if isinstance(groups, list) else [groups]
        config = {f"group_{i}": group for i, group in enumerate(named)}
        rows = calibration()
        ones = [[1] * len(row) for row in rows]
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        oneshot(
            model=model,
            processor=tokenizer,
            recipe=QuantizationModifier(config_groups=config, ignore=[*ignore]),
            dataset=Dataset.from_dict({"input_ids": rows, "attention_mask": ones}),
            num_calibration_samples=len(rows),
            max_seq_length=len(rows[0]),
        )
        model.save_pretrained(folder, save_compressed=True)

    return make


def with_gptqmodel(kind: str, **options: Any) -> Make:
    """GPTQModel; `kind` is the class of its configuration."""

    def make(base: Path, folder: Path, tokenizer: Any) -> None:
        os.environ["GPTQMODEL_CPU_WORKERS"] = "2"  # which it needs on any machine
        from gptqmodel import BACKEND, GPTQModel
        from gptqmodel.quantization import config

        model = GPTQModel.load(str(base), getattr(config, kind)(**options, **OF_GPTQMODEL))
        rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in calibration()]
        model.quantize(rows, tokenizer=tokenizer, batch_size=1, backend=BACKEND.AUTO)
        model.save(str(folder))

    return make


def with_bitsandbytes(**options: Any) -> Make:
    def make(base: Path, folder: Path, tokenizer: Any) -> None:
        from transformers import BitsAndBytesConfig

        config = BitsAndBytesConfig(**options)
        model = AutoModelForCausalLM.from_pretrained(base, quantization_config=config)
        model.save_pretrained(folder)

    return make


def with_transformers(**options: Any) -> Make:
    """Its FP8, which is computed on a CPU, too, but asks for a GPU."""

    def make(base: Path, folder: Path, tokenizer: Any) -> None:
        from transformers import FineGrainedFP8Config
        from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

        with patch.object(FineGrainedFP8HfQuantizer, "validate_environment"):
            config = FineGrainedFP8Config(**options)
            model = AutoModelForCausalLM.from_pretrained(base, quantization_config=config)
        model.save_pretrained(folder)

    return make
