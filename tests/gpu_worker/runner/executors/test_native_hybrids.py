"""Decoders with recurrent layers of random shapes, natively, beside transformers; their states lie
in blocks of the pool."""

import random
from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.startup import ignore_progress
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.kv.store_config import SharedConfig
from signalbox_worker.runner.loading.opened_model import open_with_config
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.native.layer_groups import groups_of
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.runner.executors.native_models import (
    NUM_DRAWN,
    assert_bits_depend_on_the_sequence_alone,
    assert_like_transformers,
    random_shape,
)
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

FAMILIES = (
    *("lfm2", "lfm2-moe", "granite-hybrid", "nemotron-h", "nemotron-h-moe"),
    *("qwen3-next", "qwen3.5", "qwen3.5-moe"),
)


def random_fields(family: str, seed: int) -> dict[str, Any]:
    rng = random.Random(f"{family} {seed}")
    fields = random_shape(rng)
    makers = {
        "lfm2": of_lfm2,
        "granite": of_granite,
        "nemotron": of_nemotron,
        "qwen3": of_qwen,
    }
    own = next(make for name, make in makers.items() if family.startswith(name))(rng)
    if family == "lfm2":
        own |= {"block_auto_adjust_ff_dim": rng.random() < 0.5, "block_multiple_of": 8}
    if family in ("qwen3-next", "qwen3.5-moe"):
        own |= {
            "moe_intermediate_size": rng.choice([12, 40]),
            "shared_expert_intermediate_size": rng.choice([12, 56]),
            "num_experts": rng.choice([3, 8]),
            "num_experts_per_tok": rng.choice([1, 3]),
        }
    if family == "qwen3-next":
        own |= {"norm_topk_prob": rng.random() < 0.5, "mlp_only_layers": rng.choice([[], [1]])}
    if family == "lfm2-moe":
        own |= {
            "moe_intermediate_size": rng.choice([12, 40]),
            "num_experts": rng.choice([3, 8]),
            "num_experts_per_tok": rng.choice([1, 3]),
            "num_dense_layers": rng.choice([0, 1, 2]),
            "norm_topk_prob": rng.random() < 0.5,
            "use_expert_bias": rng.random() < 0.7,
            "routed_scaling_factor": rng.choice([1.0, 1.7]),
        }
    if family == "nemotron-h-moe":
        own |= with_experts(rng, own["layers_block_type"])
    return fields | own


def random_kinds(rng: random.Random, recurrent: str, attends: str) -> dict[str, Any]:
    """Returns the layers, at least one of each kind."""
    kinds = [rng.choice([recurrent, attends]) for _ in range(rng.choice([0, 1, 3]))]
    kinds += [recurrent, attends]
    rng.shuffle(kinds)
    return {"layer_types": kinds, "num_hidden_layers": len(kinds)}


def of_lfm2(rng: random.Random) -> dict[str, Any]:
    return random_kinds(rng, "conv", "full_attention") | {
        "hidden_size": rng.choice([32, 48, 112]),
        "norm_eps": rng.choice([1e-6, 1e-2]),
        "conv_L_cache": rng.choice([2, 3, 4]),
        "conv_bias": rng.random() < 0.5,
    }


def of_qwen(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([1, 2])
    return random_kinds(rng, "linear_attention", "full_attention") | {
        "head_dim": rng.choice([16, 32]),
        "hidden_size": rng.choice([20, 36]),  # of longer sums less is exact than `LOGITS` allows
        "linear_key_head_dim": rng.choice([16, 32]),
        "linear_value_head_dim": rng.choice([16, 48]),
        "linear_num_key_heads": heads,
        "linear_num_value_heads": rng.choice([1, 2, 3]) * heads,
        "linear_conv_kernel_dim": rng.choice([2, 4]),
        "attention_bias": rng.random() < 0.5,
    }


def of_granite(rng: random.Random) -> dict[str, Any]:
    head_size, groups = rng.choice([16, 48]), rng.choice([1, 2])
    heads = rng.choice([2, 4]) * groups
    return random_kinds(rng, "mamba", "attention") | {
        "hidden_size": head_size * heads // 2,
        "head_dim": head_size,
        "num_attention_heads": heads // 2,
        "num_key_value_heads": 1,
        "shared_intermediate_size": rng.choice([12, 40]),
        "num_local_experts": rng.choice([0, 4]),
        "num_experts_per_tok": 2,
        "mamba_expand": 2,
        "mamba_n_heads": heads,
        "mamba_d_head": head_size,
        "mamba_d_state": rng.choice([16, 32]),
        "mamba_n_groups": groups,
        "mamba_d_conv": rng.choice([2, 4]),
        "mamba_conv_bias": rng.random() < 0.5,
        "mamba_proj_bias": rng.random() < 0.5,
        "position_embedding_type": rng.choice([None, "nope", "rope"]),
    }


def of_nemotron(rng: random.Random) -> dict[str, Any]:
    groups = rng.choice([1, 2])
    kinds = ["linear_attention", "full_attention", "mlp"]
    kinds += rng.choices(kinds, k=rng.choice([0, 1, 3]))
    rng.shuffle(kinds)
    return {
        "layers_block_type": kinds,
        "num_hidden_layers": len(kinds),
        "layer_norm_epsilon": rng.choice([1e-6, 1e-2]),
        "mamba_num_heads": rng.choice([1, 2, 4]) * groups,
        "mamba_head_dim": rng.choice([16, 48]),
        "ssm_state_size": rng.choice([16, 32]),
        "n_groups": groups,
        "conv_kernel": rng.choice([2, 4]),
        "use_conv_bias": rng.random() < 0.5,
        "use_bias": rng.random() < 0.5,
        "mlp_bias": rng.random() < 0.5,
        "time_step_min": 1e-30,
    }


def with_experts(rng: random.Random, kinds: list[str]) -> dict[str, Any]:
    """Returns the fields of experts, which one or two layers more have."""
    kinds = [*kinds, *["moe"] * rng.choice([1, 2])]
    rng.shuffle(kinds)
    groups = rng.choice([1, 2])
    return {
        "layers_block_type": kinds,
        "num_hidden_layers": len(kinds),
        "mlp_bias": False,
        "n_routed_experts": rng.choice([4, 8]),
        "num_experts_per_tok": rng.choice([1, 2]),
        "n_group": groups,
        "topk_group": rng.choice([1, groups]),
        "moe_intermediate_size": rng.choice([12, 40]),
        "moe_latent_size": rng.choice([None, 24, 64]),
        "moe_shared_expert_intermediate_size": rng.choice([12, 40]),
        "norm_topk_prob": rng.random() < 0.5,
        "routed_scaling_factor": rng.choice([1.0, 1.7]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_DRAWN))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_hybrids_equal_transformers(family: str, seed: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **random_fields(family, seed))
    assert_like_transformers(tmp_path, reference)


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_of_hybrids_depend_on_the_sequence_alone(family: str, tmp_path: Path) -> None:
    make_model(tmp_path, family)
    assert_bits_depend_on_the_sequence_alone(tmp_path, make_prompts(1, 17, 40, 64))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"runner": "pooling"}, "--runner pooling"),
        ({"block_size": 8}, "block size 8"),
        ({"cpu_backend": "torch"}, "cpu_backend"),
        ({"dtype": "float16"}, "not in float16"),
        ({"device": "cuda"}, "the device is cuda"),
    ],
)
def test_what_states_do_not_work_with_is_refused_by_name(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_model(tmp_path, "lfm2")
    with pytest.raises(ModelError, match=reason):
        make_runner(tmp_path, **options)


def test_a_store_of_objects_is_refused_by_name(tmp_path: Path) -> None:
    make_model(tmp_path, "lfm2")
    model = ModelConfig(model=str(tmp_path))
    config = RunnerConfig(model=model, shared=SharedConfig(kv_store="s3://bucket"))
    with pytest.raises(ModelError, match="--kv-store with objects does not work"):
        groups_of(open_with_config(model, ignore_progress), config, max_model_len=64)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hidden_size": 36}, "36 channels"),
        ({"conv_L_cache": 5}, "5 inputs"),
        ({"layer_types": ["conv"] * 3}, "by which no layer attends"),
    ],
)
def test_sizes_that_no_kernel_has_are_refused(
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_model(tmp_path, "lfm2", **fields)
    with pytest.raises(ModelError, match=reason):
        make_runner(tmp_path)
