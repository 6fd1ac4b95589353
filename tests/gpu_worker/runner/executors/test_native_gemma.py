"""Gemmas of random shapes, natively: tokens and log probabilities beside transformers'."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from signalbox_worker.device.parallel_config import ParallelConfig
from tests.gpu_worker.files.adapters.peft_adapters import make_adapters, peft_tokens
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import (
    WHOLE,
    assert_greedy,
    log_probabilities,
    make_prompts,
    make_runner,
)
from tests.gpu_worker.runner.executors.native_models import (
    KINDS,
    NUM_DRAWN,
    assert_bits_depend_on_the_sequence_alone,
    assert_like_transformers,
    make_native,
)
from tests.gpu_worker.runner.loading.gguf_files import make_gguf
from tests.gpu_worker.runner.native.test_eligibility import reason
from tests.gpu_worker.tiny_models import SHAPE, VOCAB, make_model, reference_tokens
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS

pytestmark = pytest.mark.slow

skip_without_native_kernels()

FAMILIES = ("gemma", "gemma2", "gemma3", "gemma4")
THREE = [*KINDS, KINDS[1]]
"""Kinds of the layers of a model with three."""


def random_fields(family: str, seed: int) -> dict[str, Any]:
    """Fields of config.json: odd numbers of heads and layers, tied or not, capped or not."""
    rng = random.Random(f"{family} {seed}")
    kv_heads, num_layers = rng.choice([1, 2, 3]), rng.choice([1, 3, 4])
    num_heads = kv_heads * rng.choice([1, 2, 3])
    fields: dict[str, Any] = {
        "hidden_size": num_heads * rng.choice([12, 20]),
        "intermediate_size": rng.choice([12, 40, 84]),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([16, 48]),
        "tie_word_embeddings": rng.random() < 0.7,
        "attention_bias": rng.random() < 0.3,
        "rms_norm_eps": rng.choice([1e-6, 1e-2]),
        "initializer_range": 0.1,  # larger scores multiply the roundings of transformers and ours
    }
    if family == "gemma":
        return fields
    if family == "gemma4":
        return fields | _of_gemma4(rng)
    return fields | {
        "query_pre_attn_scalar": rng.choice([16, 100]),
        "sliding_window": rng.choice([1, 13, 40]),
        "layer_types": rng.choices(KINDS, k=num_layers),
        "final_logit_softcapping": rng.choice([None, 2.0, 30.0]),
        **({"attn_logit_softcapping": rng.choice([None, 1.0])} if family == "gemma2" else {}),
    }


def _of_gemma4(rng: random.Random) -> dict[str, Any]:
    """Heads of two sizes, K that is V, K and V of other layers, inputs of each layer."""
    num_shared = rng.choice([0, 0, 2, 3])
    layer_types = [*rng.choices(KINDS, k=rng.choice([0, 1, 2])), *KINDS]
    layer_types += [*rng.choices(KINDS, k=max(0, num_shared - 1)), KINDS[1]]
    return {
        "num_hidden_layers": len(layer_types),
        "layer_types": layer_types,
        "num_kv_shared_layers": num_shared,
        "sliding_window": rng.choice([1, 13, 40]),
        "global_head_dim": rng.choice([16, 32, 96]),
        "num_global_key_value_heads": rng.choice([None, 1]),
        "attention_k_eq_v": rng.random() < 0.5,
        "use_double_wide_mlp": rng.random() < 0.5,
        "enable_moe_block": rng.random() < 0.5,
        "num_experts": 3,  # of few, fewer are nearly as good as others
        "top_k_experts": rng.choice([1, 2]),
        "moe_intermediate_size": rng.choice([12, 36]),
        # transformers shares K and V in models with such inputs alone.
        "hidden_size_per_layer_input": rng.choice([32, 64] if num_shared else [0, 32]),
        "vocab_size_per_layer_input": 97,
        "final_logit_softcapping": rng.choice([None, 30.0]),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": rng.choice([0.25, 0.5]),
                "rope_theta": 5000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }


def gguf_fields(config: Any) -> dict[str, Any]:
    """Fields of a file of Gemma 4 that say what differs from layer to layer."""
    config.allow_global_per_layer_attribute_access = True  # the writer reads those of the window
    layers, sliding = config.per_layer_config, config.rope_parameters["sliding_attention"]
    full, first_shared = layers["full_attention"].head_dim, len(config.layer_types)
    first_shared -= config.num_kv_shared_layers
    widths = [
        config.intermediate_size * (2 if config.use_double_wide_mlp and i >= first_shared else 1)
        for i in range(len(config.layer_types))
    ]
    of_heads = {"attention.key_length": full, "attention.value_length": full}
    of_heads |= {f"{name}_swa": config.head_dim for name in of_heads}
    return of_heads | {
        "attention.head_count_kv": [one.num_key_value_heads for one in layers],
        "attention.sliding_window_pattern": ["sliding" in one for one in config.layer_types],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "expert_used_count": config.top_k_experts or 0,
        "feed_forward_length": widths,
        "rope.freq_base_swa": sliding["rope_theta"],
    }


@pytest.mark.parametrize("seed", range(NUM_DRAWN))
@pytest.mark.parametrize("family", FAMILIES)
def test_random_gemmas_equal_transformers(family: str, seed: int, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family, **random_fields(family, seed))
    assert_like_transformers(tmp_path, reference)


@pytest.mark.parametrize("seed", [0, 1])
def test_files_of_gemma4_run_in_their_blocks(seed: int, tmp_path: Path) -> None:
    fields = random_fields("gemma4", seed)
    fields |= {"hidden_size": 96, "intermediate_size": 64, "tie_word_embeddings": True}
    fields |= {"head_dim": 32, "global_head_dim": 64}  # whole blocks
    fields |= {"enable_moe_block": bool(seed), "num_experts": 3 if seed else None}
    fields["moe_intermediate_size"] = 32 if seed else None
    reference = make_model(tmp_path / "hf", "gemma4", **fields)
    extra = gguf_fields(reference.config)
    exact = make_gguf(tmp_path / "exact.gguf", reference, "gemma4", extra=extra)
    assert_greedy(make_native(exact), reference, make_prompts(17, 40), 6, chunks=(WHOLE, 7))
    blocks = make_gguf(
        tmp_path / "blocks.gguf", reference, "gemma4", extra=extra, kind_of=lambda _: "Q8_0"
    )
    decoded = make_runner(blocks, cpu_backend="torch")
    expected = log_probabilities(decoded)
    torch.testing.assert_close(
        log_probabilities(make_native(blocks)), expected, rtol=0, atol=LOGITS
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_on_the_sequence_alone(dtype: str, tmp_path: Path) -> None:
    fields = {"num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 36}
    fields |= {"head_dim": 48, "global_head_dim": 32, "enable_moe_block": True}
    fields |= {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCAB}
    reference = make_model(tmp_path, "gemma4", **fields, num_kv_shared_layers=1, layer_types=THREE)
    prompts = make_prompts(60, 5, 33)
    found = assert_bits_depend_on_the_sequence_alone(tmp_path, prompts, dtype=dtype)
    if dtype == "float32":
        tokens = [reference_tokens(reference, prompt, 12) for prompt in prompts]
        assert [one[len(p) :] for one, p in zip(found, prompts, strict=True)] == tokens


def test_adapters_of_layers_that_differ(tmp_path: Path) -> None:
    fields = {"head_dim": 48, "global_head_dim": 32, "hidden_size_per_layer_input": 32}
    fields |= {"vocab_size_per_layer_input": VOCAB, "use_double_wide_mlp": True}
    reference = make_model(tmp_path, "gemma4", **fields, num_kv_shared_layers=1, layer_types=THREE)
    kinds = [{"r": 4, "target_modules": ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")}]
    runner = make_native(tmp_path, lora=make_adapters(reference, tmp_path / "adapters", kinds))
    prompts = make_prompts(17, 9)
    expected = [
        peft_tokens(reference, tmp_path / "adapters/a0", prompts[:1], 8)[0],
        reference_tokens(reference, prompts[1], 8),
    ]
    driver = Driver(runner=runner, chunk=6)
    assert driver.generate(prompts, num_tokens=8, adapters=[0, -1]) == expected


@pytest.mark.parametrize(
    ("fields", "ranks", "expected"),
    [
        ({}, 2, "its layers have heads of several sizes"),
        ({"global_head_dim": 40}, 1, "head size 40 is no multiple of 16"),
        ({"hidden_size_per_layer_input": 8}, 1, "hidden_size_per_layer_input 8 is no multiple of"),
        ({"num_experts": 1025, "enable_moe_block": True}, 1, "more than 1024 experts in a layer"),
    ],
    ids=str,
)
def test_what_gemma4_lacks_natively_is_said_by_name(
    fields: dict[str, Any], ranks: int, expected: str, tmp_path: Path
) -> None:
    config = {"architectures": ["Gemma4ForCausalLM"], **SHAPE, "head_dim": 16, "top_k_experts": 1}
    config |= {"moe_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    parallel = ParallelConfig(tensor_parallel_size=ranks)
    options = {"device": "cpu", "load_format": "dummy"}
    assert expected in str(reason(tmp_path, parallel=parallel, **options))
