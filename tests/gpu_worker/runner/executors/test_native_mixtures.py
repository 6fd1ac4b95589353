"""Mixtures, natively: tokens and log probabilities of random shapes beside transformers'. Also of
other families: bits that depend on a sequence alone, and adapters."""

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from signalbox_worker.config import ModelError
from signalbox_worker.models.latent_config import deepseek_v2_config
from signalbox_worker.runner.native.tensor_share import why_not_divided
from tests.gpu_worker.files.adapters.peft_adapters import make_adapters, peft_tokens
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import (
    WHOLE,
    assert_greedy,
    log_probabilities,
    make_prompts,
    make_runner,
)
from tests.gpu_worker.quantised_models import make_mxfp4
from tests.gpu_worker.runner.executors.native_models import (
    KINDS,
    NUM_DRAWN,
    assert_bits_depend_on_the_sequence_alone,
    assert_like_transformers,
    expected_log_probabilities,
    make_native,
    random_shape,
    widen_to_heads,
)
from tests.gpu_worker.runner.loading.gguf_files import make_gguf
from tests.gpu_worker.tiny_models import (
    LATENTS,
    YARN_ROPE,
    architecture_of,
    make_model,
    make_tokenizer,
    reference_tokens,
)
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS

pytestmark = pytest.mark.slow

skip_without_native_kernels()

FAMILIES = (
    *("mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "granite-moe", "glm4-moe", "gpt-oss"),
    *("deepseek-v2", "deepseek-v3", "glm4-moe-lite"),
)


def random_fields(family: str, seed: int) -> dict[str, Any]:
    """Fields of config.json: odd numbers of experts, with biases or not."""
    rng = random.Random(f"{family} {seed}")
    num_experts = rng.choice([3, 7, 16])
    fields = random_shape(rng) | {
        "moe_intermediate_size": rng.choice([12, 36, 68]),
        "num_experts_per_tok": rng.choice([1, 2, 3]),
    }
    if family in ("deepseek-v2", "deepseek-v3", "glm4-moe-lite"):
        return fields | latent_fields(family, rng, num_heads=fields["num_attention_heads"])
    if family in ("olmoe", "granite-moe"):
        widen_to_heads(fields)
    if family == "glm4-moe":
        return fields | {
            "n_routed_experts": (groups := rng.choice([1, 2, 3])) * rng.choice([2, 5]),
            "n_group": groups,
            "topk_group": rng.randint(1, groups),
            "num_experts_per_tok": rng.choice([1, 2]),
            "n_shared_experts": rng.choice([1, 2]),
            "first_k_dense_replace": rng.choice([0, 1, 9]),
            "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0]),
            **{name: rng.random() < 0.5 for name in ("use_qk_norm", "attention_bias")},
            "norm_topk_prob": rng.random() < 0.7,
        }
    if family == "gpt-oss":
        del fields["moe_intermediate_size"]
        return fields | {
            "num_local_experts": num_experts,
            "attention_bias": rng.random() < 0.5,
            "sliding_window": rng.choice([5, 19]),
            "layer_types": rng.choices(KINDS, k=fields["num_hidden_layers"]),
            "swiglu_limit": rng.choice([0.25, 7.0]),
            "swiglu_alpha": rng.choice([1.0, 1.702]),
        }
    if family in ("mixtral", "granite-moe"):
        fields["num_local_experts"] = num_experts
        if family == "mixtral":
            fields["sliding_window"] = rng.choice([None, 11])
        else:  # larger scores multiply the roundings of transformers as well as ours
            fields["attention_multiplier"] = 0.05
        return fields
    fields |= {"num_experts": num_experts, "norm_topk_prob": rng.random() < 0.5}
    if family != "olmoe":
        fields["decoder_sparse_step"] = rng.choice([1, 1, 2])
        fields["shared_expert_intermediate_size"] = rng.choice([4, 44])
    if family == "qwen2-moe":
        fields["qkv_bias"] = rng.random() < 0.5
    else:
        fields["attention_bias"] = rng.random() < 0.5
    return fields


def latent_fields(family: str, rng: random.Random, *, num_heads: int) -> dict[str, Any]:
    """Fields of attention to latents, and of mixtures with groups of experts."""
    fields: dict[str, Any] = {
        "hidden_size": 4 * num_heads * rng.choice([5, 9]),
        "num_key_value_heads": num_heads,
        "kv_lora_rank": rng.choice([32, 96]),
        "q_lora_rank": rng.choice([None, 20, 33]),
        "qk_nope_head_dim": rng.choice([32, 64]),
        "qk_rope_head_dim": rng.choice([32, 64]),
        "v_head_dim": rng.choice([32, 96]),
        "attention_bias": rng.random() < 0.5,
        "n_routed_experts": 8,
        "n_shared_experts": rng.choice([1, 2]),
        "routed_scaling_factor": rng.choice([1.0, 2.5]),
        "n_group": 4,
        "topk_group": 2,
    }
    if family != "glm4-moe-lite":
        fields["first_k_dense_replace"] = rng.choice([0, 1])
    if family == "deepseek-v2":
        fields["topk_method"] = rng.choice(["greedy", "group_limited_greedy"])
    else:
        fields["norm_topk_prob"] = rng.random() < 0.5
        fields["rope_interleave"] = rng.random() < 0.5
        fields["head_dim"] = fields["qk_rope_head_dim"]  # of which it is another name
    if rng.random() < 0.6:
        scales = {"mscale": 0.7, "mscale_all_dim": rng.choice([0.0, 0.7, 1.0])}
        fields["rope_parameters"] = YARN_ROPE | scales
    return fields


@pytest.mark.compares(how="natively in random shapes", of=architecture_of)
@pytest.mark.parametrize("seed", range(NUM_DRAWN))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_mixtures_equal_transformers(family: str, seed: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **random_fields(family, seed))
    assert_like_transformers(tmp_path, reference)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("qwen2-moe", {}),
        ("qwen2-moe", {"quantization": "int8"}),
        ("qwen2-moe", {"quantization": "int4"}),
        ("gpt-oss", {}),
        ("olmo3", {}),
        ("olmo3", {"quantization": "int4"}),
        ("cohere2", {}),
        ("gpt-oss", {"quantization": "mxfp4"}),
        ("deepseek-v2", {}),
        ("deepseek-v2", {"quantization": "int8"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_bits_depend_on_the_sequence_alone(
    family: str, form: dict[str, str], dtype: str, tmp_path: Path
) -> None:
    if form.get("quantization") == "mxfp4":
        make_mxfp4(tmp_path)
    else:
        own = LATENTS if family == "deepseek-v2" else {"head_dim": 16}
        make_model(tmp_path, family, hidden_size=96, **own)
    options = form | {"dtype": dtype}
    if form:
        factors = "float32" if dtype == "float32" else "int8"
        assert make_native(tmp_path, **options).model.numerics.factors == factors
    assert_bits_depend_on_the_sequence_alone(tmp_path, make_prompts(60, 5, 33, 61), **options)


@pytest.mark.parametrize(
    ("family", "of_feed_forward"),
    [
        ("qwen3-moe-partly", ()),
        ("cohere2", ("gate_proj", "up_proj", "down_proj")),
        ("olmo3", ("gate_proj", "down_proj")),
    ],
)
def test_adapters_that_are_served(
    family: str, of_feed_forward: tuple[str, ...], tmp_path: Path
) -> None:
    reference = make_model(tmp_path, family, hidden_size=96)
    kinds = (
        {"r": 4, "target_modules": ("q_proj", "v_proj", "o_proj", *of_feed_forward)},
        {"r": 3, "target_modules": ("k_proj", "o_proj"), "layers_to_transform": [0, 2]},
    )
    runner = make_native(tmp_path, lora=make_adapters(reference, tmp_path / "adapters", kinds))
    prompts = make_prompts(17, 33, 9)
    expected = [
        *(
            peft_tokens(reference, tmp_path / f"adapters/a{number}", [prompt], 8)[0]
            for number, prompt in enumerate(prompts[:2])
        ),
        reference_tokens(reference, prompts[2], 8),
    ]
    for chunk in (WHOLE, 6):
        driver = Driver(runner=runner, chunk=chunk)
        assert driver.generate(prompts, num_tokens=8, adapters=[0, 1, -1]) == expected


def test_latents_are_the_whole_cache(tmp_path: Path) -> None:
    """One vector a token and layer, which is no code; one rank has all heads."""
    make_model(tmp_path, "deepseek-v2", **LATENTS)
    runner = make_native(tmp_path)
    assert runner.pools.gpu_pool.shape[1] == 3 * 16 * (64 + 32) * 4
    with pytest.raises(ValueError, match="its cache of latents takes no codes of 8 bits"):
        make_native(tmp_path, kv_cache_dtype="int8")
    config = json.loads((tmp_path / "config.json").read_text())
    assert why_not_divided(deepseek_v2_config(config), 2) == "its heads share one latent"


def test_adapters_of_latents_are_refused_by_name(tmp_path: Path) -> None:
    reference = make_model(tmp_path, "deepseek-v2", **LATENTS)
    kinds = [{"r": 4, "target_modules": ("q_b_proj", "o_proj")}]
    lora = make_adapters(reference, tmp_path / "adapters", kinds)
    with pytest.raises(ModelError, match="q_b_proj"):
        make_native(tmp_path, lora=lora)


def test_adapters_of_experts_are_refused_by_name(tmp_path: Path) -> None:
    reference = make_model(tmp_path, "qwen2-moe", head_dim=16)
    kinds = [{"r": 4, "target_modules": ("gate_proj", "up_proj", "down_proj")}]
    lora = make_adapters(reference, tmp_path / "adapters", kinds)
    with pytest.raises(ModelError, match="expert"):
        make_native(tmp_path, lora=lora)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_stacks_of_experts_are_read_and_layers_behind_the_last_are_not(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = make_model(tmp_path / "parts", "glm4-moe")
    folder = tmp_path / "stacks"
    reference.save_pretrained(folder, save_original_format=False)
    make_tokenizer(folder)
    tensors = load_file(folder / "model.safetensors")
    assert not any(".experts.0." in name for name in tensors)
    last = f"model.layers.{reference.config.num_hidden_layers}"
    tensors |= {f"{last}.{name}.weight": torch.ones(48) for name in ("enorm", "input_layernorm")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.INFO):
        runner = make_runner(folder, cpu_backend=backend, block_size=16)
    assert runner.model.numerics.kernels.startswith(backend)
    assert ("2 tensors of layers that predict further" in caplog.text) is (backend == "native")
    assert_greedy(runner, reference, make_prompts(1, 17), 6, chunks=(WHOLE, 7))


def test_a_file_runs_through_transformers_where_the_program_cannot(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "olmoe", hidden_size=96)
    path = make_gguf(tmp_path / "x.gguf", reference, "olmoe")
    assert_greedy(make_runner(path, cpu_backend="torch"), reference, [[5, 9, 60, 3]], 12)
    with pytest.raises(ModelError, match="computed natively alone, but cpu_backend"):
        make_runner(path, cpu_backend="torch", model_impl="signalbox")


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "MXFP4"])
def test_experts_that_transformers_has_joined_keep_the_blocks_of_a_file(
    kind: str, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "swiglu_limit": 7.0}  # what files mean
    reference = make_model(tmp_path / "hf", "gpt-oss", **sizes)
    path = make_gguf(
        tmp_path / "x.gguf",
        reference,
        "gpt-oss",
        kind_of=lambda name: kind if "exps" in name else "F32",
    )
    runner = make_native(path)
    assert kind in runner.executor.program.weights
    expected = log_probabilities(make_runner(path, cpu_backend="torch"))
    torch.testing.assert_close(log_probabilities(runner), expected, rtol=0, atol=LOGITS)


def test_experts_of_several_types_run_through_pytorch(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3-moe", num_hidden_layers=1)
    folder = tmp_path / "hf"
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name in tensors:
            if ".experts.3.down_proj" in name:
                tensors[name] = tensors[name].half()
        save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="stored in several types"):
        make_native(folder)
    runner = make_runner(folder, block_size=16)
    assert runner.model.numerics.kernels.startswith("torch")
    expected = expected_log_probabilities(reference)
    torch.testing.assert_close(log_probabilities(runner), expected, rtol=0, atol=0.05)
