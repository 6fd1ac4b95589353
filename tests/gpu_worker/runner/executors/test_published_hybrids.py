"""Checkpoints of decoders with recurrent layers as they are published, and their other forms."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.gpu_worker.model_runners import log_probabilities, make_prompts
from tests.gpu_worker.quantised_models import in_gptq, save_quantised
from tests.gpu_worker.runner.executors.native_models import (
    assert_bits_depend_on_the_sequence_alone,
    assert_like_transformers,
    expected_log_probabilities,
    make_native,
)
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS

skip_without_native_kernels()

PUBLISHED: dict[str, dict[str, Any]] = {
    "lfm2": {
        "block_dim": 48,
        "block_mlp_init_scale": 1.0,
        "block_norm_eps": 1e-5,
        "block_use_swiglu": True,
        "conv_dim": 48,
        "conv_dim_out": 48,
        "full_attn_idxs": None,
        "num_heads": 3,
        "use_pos_enc": True,
    },
    "granite-hybrid": {
        "init_method": "mup",
        "mamba_chunk_size": 256,
        "mamba_d_state": 16,  # as small as blocks of so few heads
        "normalization_function": "rmsnorm",
        "position_embedding_type": "nope",
    },
    "nemotron-h": {
        "attention_bias": False,
        "attention_head_dim": 16,
        "mamba_proj_bias": False,
        "rms_norm_eps": 1e-5,
        "time_step_limit": [0.0, float("inf")],
        "time_step_rank": 256,
    },
    "qwen3.5": {
        "attn_output_gate": True,
        "full_attention_interval": 3,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "partial_rotary_factor": 0.25,
    },
}
"""Fields of published files that say nothing, or what the class has in its code."""
OF_NEMOTRON = {"hybrid_override_pattern": "M-*M", "num_hidden_layers": 4}
"""Fields of the first files in place of the kinds of layers."""
FURTHER = {"mtp.fc.weight": (48, 96), "mtp.layers.0.mlp.down_proj.weight": (48, 8)}
"""Tensors of layers that predict further tokens."""
FORMS: tuple[dict[str, Any], ...] = (
    {"dtype": "bfloat16"},
    {"dtype": "int16"},
    {"dtype": "float32", "quantization": "int8"},
    {"dtype": "bfloat16", "quantization": "int8"},
    {"dtype": "auto", "quantization": "int4"},
    {"dtype": "float32", "kv_cache_dtype": "int8"},
)


def make_published(path: Path, family: str) -> None:
    """Saves a random model in bfloat16 but for decays, with tensors that transformers ignores."""
    make_model(path, family, **PUBLISHED[family])
    reference(path, torch.bfloat16).save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    tensors = {key: one.float() if "A_log" in key else one for key, one in tensors.items()}
    if family == "qwen3.5":
        tensors |= {name: torch.ones(shape) for name, shape in FURTHER.items()}
    if family == "nemotron-h":
        tensors = {re.sub("^model", "backbone", name): one for name, one in tensors.items()}
        config = json.loads((path / "config.json").read_text())
        del config["layers_block_type"]
        (path / "config.json").write_text(json.dumps(config | OF_NEMOTRON))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def reference(path: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().mean())


@pytest.mark.parametrize("family", PUBLISHED)
def test_a_checkpoint_runs_as_it_is_published(family: str, tmp_path: Path) -> None:
    """In its own type it is no further from float32 than transformers is."""
    make_published(tmp_path, family)
    exact = reference(tmp_path, torch.float32)
    assert_like_transformers(tmp_path, exact)
    expected = expected_log_probabilities(exact)
    half = expected_log_probabilities(reference(tmp_path, torch.bfloat16)).float()
    runner = make_native(tmp_path, dtype="auto")
    assert runner.model.dtype == "bfloat16"
    assert difference(log_probabilities(runner), expected) < difference(half, expected)


@pytest.mark.parametrize("family", ["lfm2", "qwen3.5", "nemotron-h-moe"])
def test_weights_in_few_bits_are_about_as_exact_as_their_codes(family: str, tmp_path: Path) -> None:
    """A code of 8 bits rounds by up to 1/254 of the largest weight of a group, bfloat16 by up to
    1/512 of each."""
    make_model(tmp_path, family)
    exact = log_probabilities(make_native(tmp_path))
    half = log_probabilities(make_native(tmp_path, dtype="bfloat16"))
    eight, four = (
        log_probabilities(make_native(tmp_path, quantization=form)) for form in ("int8", "int4")
    )
    assert 0 < difference(eight, exact) < 5 * difference(half, exact)
    assert difference(eight, exact) < difference(four, exact)


@pytest.mark.parametrize("family", ["lfm2-moe", "qwen3.5"])
def test_a_checkpoint_in_four_bits_runs_in_its_codes(family: str, tmp_path: Path) -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    decoded = save_quantised(tmp_path, family, partial(in_gptq, group_size=32), config)
    actual = log_probabilities(make_native(tmp_path))
    torch.testing.assert_close(actual, expected_log_probabilities(decoded), rtol=0, atol=LOGITS)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("family", ["lfm2", "qwen3.5", "nemotron-h-moe"])
def test_bits_of_all_forms_depend_on_the_sequence_alone(
    family: str, form: dict[str, Any], tmp_path: Path
) -> None:
    make_model(tmp_path, family)
    assert_bits_depend_on_the_sequence_alone(tmp_path, make_prompts(1, 17, 40), **form)
