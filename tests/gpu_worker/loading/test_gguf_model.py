"""GGUF files: every type of weights, parts, tokenizers, and whole models against transformers."""

import dataclasses
import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from gpu_worker.checkpoints.gguf_config import MAX_CONTEXT_LENGTH, GGUFConfig
from gpu_worker.checkpoints.gguf_reader import GGUFContent, read_gguf
from gpu_worker.checkpoints.gguf_tokenizer import GGUFVocab, adds_bos, build
from gpu_worker.checkpoints.gguf_weights import make_pool, to_tensor
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from gpu_worker.loading.model_source import ModelSource, open_model
from gpu_worker.models import model_spec
from gpu_worker.models.decoder_config import qwen3_config
from gpu_worker.models.gemma import gemma3_config
from gpu_worker.runner.model_runner import ModelRunner
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.tiny_models import YARN_ROPE, make_model, make_tokenizer, reference_tokens
from tests.transformers_demo import DEMO, demo, greedy_tokens, read

pytestmark = pytest.mark.xdist_group("demo")

PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4,",
    "Ünïcödé and emoji 🚂 mix, and",
]
TEXTS = [
    *PROMPTS,
    "  two  spaces\n\n\ttabs 12345 don't I'LL 東京 ñ \u200d🏳️‍🌈",
    "<|im_end|>x<|im_start|>",
]


def open_path(path: Path | str, **fields: Any) -> ModelSource:
    return open_model(ModelConfig(model=str(path), **fields), lambda _: None)


def make_runner(path: Path, *, max_model_len: int | None = 256, **fields: Any) -> ModelRunner:
    runner = ModelRunner(
        ModelConfig(model=str(path), dtype="float32", max_model_len=max_model_len, **fields),
        CacheConfig(max_num_seqs=8),
        device_config=DeviceConfig(device="cpu"),
    )
    runner.init_cache_engine(num_gpu_blocks=200, num_cpu_blocks=0)
    return runner


# ---- GGUF ----


@pytest.mark.parametrize("content", [b"", b"not a gguf file, but long enough to look at", b"GGUF"])
def test_file_that_is_no_gguf_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="no readable GGUF"):
        open_path(tmp_path / "x.gguf")


def make_gguf(
    path: Path,
    reference: Any,
    architecture: str,
    kind_of: Callable[[str], str] | None = None,
    extra: dict[str, Any] | None = None,
    tokens: list[str] | None = None,
    pre: str | None = "smollm",
    **options: Any,
) -> Path:
    """Writes a random model as llama.cpp's converter would; float32, or what `kind_of` says.

    Args:
        tokens: a vocabulary to be merged by `MERGES`.
        pre: its way to cut words.
        extra: more fields, of the tokenizer or (without its name) of the architecture.
    """
    config = reference.config
    writer = gguf.GGUFWriter(path, architecture, **options)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "llama3":  # as divisors of the frequencies
        inv_freq = reference.model.rotary_emb.inv_freq
        plain = rope["rope_theta"] ** -(torch.arange(len(inv_freq)) / len(inv_freq))
        writer.add_tensor("rope_freqs.weight", (plain / inv_freq).numpy())
    else:
        add_rope_scaling(writer, rope)
    for key, value in (extra or {}).items():
        add_field(writer, key if key.startswith("tokenizer.") else f"{architecture}.{key}", value)
    add_optional_fields(writer, config)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    own = [chr(0x100 + i) for i in range(config.vocab_size - 2)] + ["<|a|>", "<|im_end|>"]
    writer.add_token_list(tokens or own)
    writer.add_token_types([1] * len(tokens) if tokens else [1] * (len(own) - 2) + [3, 3])
    writer.add_token_merges(MERGES if tokens else [])
    writer.add_eos_token_id(config.vocab_size - 2)
    for name, tensor in reference.state_dict().items():
        values = tensor.float().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if "gemma" in architecture and "norm" in name:
            values = values + 1
        if architecture == "llama":
            for part, heads in (
                ("q_proj", config.num_attention_heads),
                ("k_proj", config.num_key_value_heads),
            ):
                if part in name:
                    split = values.reshape(heads, 2, -1, *values.shape[1:])
                    values = split.swapaxes(1, 2).reshape(values.shape)
        for stored_name, stored in gguf_tensors(name, values, architecture).items():
            stored = np.ascontiguousarray(stored)
            if kind_of is None or stored.ndim < 2:
                writer.add_tensor(stored_name, stored)
            else:
                kind = GGMLQuantizationType[kind_of(stored_name)]
                writer.add_tensor(stored_name, quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_rope_scaling(writer: gguf.GGUFWriter, rope: dict[str, Any]) -> None:
    kind = rope["rope_type"]
    if kind == "default":
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    adders = {
        "factor": writer.add_rope_scaling_factor,
        "original_max_position_embeddings": writer.add_rope_scaling_orig_ctx_len,
        "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
        "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
    }
    attention = writer.add_rope_scaling_attn_factors
    if kind == "yarn":
        attention = writer.add_rope_scaling_yarn_attn_factor
    for name, add in {**adders, "attention_factor": attention}.items():
        if rope.get(name) is not None:
            add(rope[name])
    for length in ("long", "short"):
        if f"{length}_factor" in rope:
            factors = np.array(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)


def add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_int32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


def add_optional_fields(writer: gguf.GGUFWriter, config: Any) -> None:
    adders = {
        "head_dim": writer.add_key_length,
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "sliding_window": writer.add_sliding_window,
        "num_local_experts": writer.add_expert_count,
        "num_experts_per_tok": writer.add_expert_used_count,
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
    }
    for name, add in adders.items():
        if getattr(config, name, None) is not None:
            add(getattr(config, name))


def gguf_tensors(
    name: str, values: NDArray[np.float32], architecture: str
) -> dict[str, NDArray[np.float32]]:
    """llama.cpp stacks the experts' matrices, each kind by itself."""
    layer = gguf_name(".".join(name.split(".")[:3]))
    if name.endswith("experts.gate_up_proj"):
        gate, up = np.split(values, 2, axis=1)
        return {f"{layer}.ffn_gate_exps.weight": gate, f"{layer}.ffn_up_exps.weight": up}
    if name.endswith("experts.down_proj"):
        return {f"{layer}.ffn_down_exps.weight": values}
    if architecture in ("gemma2", "gemma3"):
        name = name.replace("post_attention_layernorm", "post_attention_norm")
    return {gguf_name(name): values}


def gguf_name(name: str) -> str:
    short = {
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        "self_attn.qkv_proj": "attn_qkv",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.gate.": "ffn_gate_inp.",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "input_layernorm": "attn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for long, brief in short.items():
        name = name.replace(long, brief)
    return name


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("llama", "llama2"),
        ("llama", "llama3"),
        ("llama", "llama-yarn"),
        ("llama", "mistral"),
        ("llama", "llama-biased"),
        ("llama", "mixtral"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("qwen3moe", "qwen3-moe"),
        ("gemma", "gemma"),
        ("gemma2", "gemma2"),
        ("gemma3", "gemma3"),
    ],
)
def test_gguf_of_each_family_equals_transformers(
    architecture: str, family: str, tmp_path: Path
) -> None:
    flags: dict[str, Any] = {"mlp_bias": False} if family == "llama-biased" else {}
    if family in ("gemma2", "gemma3"):  # files do not say it: it is the head size
        flags["query_pre_attn_scalar"] = 8
    if family == "gemma3":
        flags |= {"num_hidden_layers": 7, "layer_types": None, "rope_parameters": GEMMA3_ROPE}
    reference = make_model(tmp_path / "hf", family, head_dim=8, **flags)
    path = make_gguf(tmp_path / f"Tiny-{architecture}.Q8_0.gguf", reference, architecture)
    runner = make_runner(path)
    prompts = [[5, 9, 60, 3], [8] * 20]
    expected = [reference_tokens(reference, prompt, 12) for prompt in prompts]
    assert Driver(runner=runner).generate(prompts, num_tokens=12) == expected
    assert runner.model.name == f"Tiny-{architecture}"
    assert runner.model.eos_token_ids == (95, 96)


# ---- fields ----

YARN_VARIANTS: list[dict[str, Any]] = [
    {},
    {"attention_factor": 1.7},
    {"beta_fast": 8.0, "beta_slow": 2.0, "factor": 2.5},
    {"original_max_position_embeddings": 256},
]


@pytest.mark.parametrize("variant", YARN_VARIANTS)
def test_yarn_of_a_gguf_is_that_of_transformers(variant: dict[str, Any], tmp_path: Path) -> None:
    rope = YARN_ROPE | variant
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=16, rope_parameters=rope)
    source = open_path(make_gguf(tmp_path / "x.gguf", reference, "qwen3"))
    ours = qwen3_config(source.config).rope
    cos, sin = ours.cos_sin(16, 256)
    theirs = reference.model.rotary_emb(torch.zeros(1), torch.arange(256)[None])
    torch.testing.assert_close(cos, theirs[0][0, :, :8], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sin, theirs[1][0, :, :8], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.freq_base", math.nan),
        ("rope.scaling.factor", -4.0),
        ("rope.scaling.yarn_beta_fast", math.inf),
        ("rope.scaling.attn_factor", 0.0),
        ("rope.scaling.original_context_length", 0),
    ],
)
def test_rotation_by_what_is_no_positive_number_is_refused(
    key: str, value: float, tmp_path: Path
) -> None:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    extra = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, key: value}
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3", extra=extra)
    with pytest.raises(ModelError, match=r"rotates by a \w+ of .*; fetch a sound file"):
        assert open_path(path).config


def test_attention_factor_of_llama_cpp_multiplies_that_of_yarn(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "llama-yarn")
    extra = {"rope.scaling.attn_factor": 0.5}
    source = open_path(make_gguf(tmp_path / "x.gguf", reference, "llama", extra=extra))
    factor = source.config["rope_parameters"]["attention_factor"]
    assert factor == pytest.approx(0.5 * (0.1 * math.log(4) + 1))


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"rope.scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope.scaling.factor": 0.0}, {"rope_type": "default"}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, {"rope_type": "default"}),
    ],
)
def test_scaling_without_a_type_is_read_as_llama_cpp_reads_it(
    extra: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    reference = make_model(tmp_path / "hf", "llama2")
    source = open_path(make_gguf(tmp_path / "x.gguf", reference, "llama", extra=extra))
    assert source.config["rope_parameters"] == {"rope_theta": 10000.0} | expected


@pytest.mark.parametrize(
    ("architecture", "family", "key", "value"),
    [
        ("llama", "llama2", "no.such_key", 1),
        ("llama", "llama2", "logit_scale", 2.0),
        ("llama", "llama2", "residual_scale", 0.5),
        ("llama", "llama2", "embedding_scale", 12.0),
        ("llama", "llama2", "attention.scale", 0.1),
        ("llama", "llama2", "attention.causal", False),
        ("llama", "llama2", "rope.scaling.attn_factor", 1.2),
        ("llama", "llama2", "rope.freq_base_swa", 5000.0),
        ("llama", "llama-yarn", "rope.scaling.yarn_log_multiplier", 0.1),
        ("llama", "mixtral", "expert_gating_func", 2),
        ("qwen2", "qwen2", "final_logit_softcapping", 30.0),
        ("qwen3", "qwen3", "attention.temperature_scale", 0.1),
        ("qwen3moe", "qwen3-moe", "expert_shared_count", 1),
        ("qwen3moe", "qwen3-moe", "expert_weights_scale", 2.5),
        ("gemma", "gemma", "attn_logit_softcapping", 50.0),
        ("gemma3", "gemma3", "rope.local.freq_base", 5000.0),
    ],
)
def test_field_that_is_not_read_is_refused_by_name(
    architecture: str, family: str, key: str, value: Any, tmp_path: Path
) -> None:
    reference = make_model(tmp_path / "hf", family)
    path = make_gguf(tmp_path / "x.gguf", reference, architecture, extra={key: value})
    with pytest.raises(ModelError, match=rf"says {architecture}\.{key} = .*, which is not supp"):
        _ = open_path(path).config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope.scaling.type", "su", "says rope scaling 'su', which is not supported"),
        ("attention.head_count_kv", [2, 2, 6], r"has a qwen2.attention.head_count_kv for each la"),
        ("attention.sliding_window", 21, "does not say which layers its sliding window is for"),
        ("attention.value_length", 16, "has values of another head size than its keys"),
        ("rope.dimension_count", 4, "rotates a part of each head"),
        (
            "context_length",
            MAX_CONTEXT_LENGTH + 1,
            r"a context_length of 4194305, .* \[1, 4194304\]",
        ),
        ("context_length", 0, "has a context_length of 0"),
    ],
)
def test_field_of_a_value_that_is_not_served_is_refused(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    reference = make_model(tmp_path / "hf", "qwen2")
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen2")
    fields = read_gguf(path).fields | {f"qwen2.{key}": value}
    content = GGUFContent(fields=fields, tensors=read_gguf(path).tensors)
    with pytest.raises(ModelError, match=message):
        GGUFConfig(content, path).config()


def test_fields_that_change_nothing_are_taken(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3-moe")
    extra = {
        "vocab_size": 97,
        "tensor_data_layout": "Meta AI original pth",
        "rope.scaling.finetuned": False,
        "rope.scaling.original_context_length": 64,
        "expert_weights_norm": True,
        "expert_gating_func": 1,
        "expert_shared_count": 0,
        "logit_scale": 1.0,
        "attention.sliding_window": 256,
        "attention.causal": True,
    }
    source = open_path(make_gguf(tmp_path / "x.gguf", reference, "qwen3moe", extra=extra))
    assert source.config["rope_parameters"]["rope_type"] == "default"
    assert source.config["num_experts"] == 8


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.remove_extra_whitespaces", True),
        ("tokenizer.ggml.normalizer.lowercase", True),
        ("tokenizer.ggml.suppress_tokens", [3]),
    ],
)
def test_field_of_a_tokenizer_that_is_not_read_is_refused_by_name(
    key: str, value: Any, tmp_path: Path
) -> None:
    reference = make_model(tmp_path / "hf", "llama2")
    path = make_gguf(tmp_path / "x.gguf", reference, "llama", extra={key: value})
    with pytest.raises(ModelError, match=f"says {key} = .*, which is not supported"):
        _ = open_path(path).config


def test_window_of_each_layer_may_be_listed(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "gemma3")
    extra = {"attention.sliding_window_pattern": [True, False, True]}
    source = open_path(make_gguf(tmp_path / "x.gguf", reference, "gemma3", extra=extra))
    assert gemma3_config(source.config).sliding_windows == (21, None, 21)


def test_every_token_that_a_file_says_ends_a_sequence_does(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    extra = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eos_token_ids": [3, 95]}
    source = open_path(make_gguf(tmp_path / "x.gguf", reference, "qwen3", extra=extra))
    assert source.eos_token_ids() == (3, 7, 95, 96)


# ---- through transformers ----


def make_phi3(**fields: Any) -> Any:
    import transformers

    shape = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "pad_token_id": 0}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    config = transformers.Phi3Config(
        **(shape | heads | {"vocab_size": 97, "max_position_embeddings": 256} | fields),
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    return transformers.Phi3ForCausalLM(config).eval()


@pytest.mark.parametrize("is_tied", [False, True])
def test_gguf_of_a_family_without_a_file_of_ours_runs_through_transformers(
    is_tied: bool, tmp_path: Path
) -> None:
    reference = make_phi3(sliding_window=19, tie_word_embeddings=is_tied)
    runner = make_runner(make_gguf(tmp_path / "x.gguf", reference, "phi3"))
    prompt = [5, 9, 60, 3] * 8
    expected = reference_tokens(reference, prompt, 8)
    assert Driver(runner=runner).generate([prompt], num_tokens=8) == [expected]


def test_tied_gguf_runs_through_transformers_where_ours_would_do(tmp_path: Path) -> None:
    reference = make_model(
        tmp_path / "hf", "qwen3", head_dim=8, tie_word_embeddings=True, rope_parameters=YARN_ROPE
    )
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3")
    prompt = [5, 9, 60, 3] * 20
    expected = reference_tokens(reference, prompt, 12)
    for impl in ("signalbox", "transformers"):
        runner = make_runner(path, model_impl=impl)
        assert Driver(runner=runner).generate([prompt], num_tokens=12) == [expected]


LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.5, 4.0, 9.0],
}


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize(
    ("window", "length", "is_long"), [(None, 40, False), (64, 40, False), (200, 90, True)]
)
def test_longrope_has_the_factors_of_its_window(
    window: int | None, length: int, is_long: bool, form: str, tmp_path: Path
) -> None:
    reference = make_phi3(
        sliding_window=None, rope_parameters=LONG_ROPE, original_max_position_embeddings=64
    )
    path = tmp_path / "x.gguf"
    if form == "gguf":
        extra = {"rope.dimension_count": 6, "rope.scaling.attn_factor": 1.2}
        reference.model.rotary_emb.attention_scaling = extra["rope.scaling.attn_factor"]
        make_gguf(path, reference, "phi3", extra=extra)
    else:
        path = tmp_path / "hf"
        reference.save_pretrained(path)
        make_tokenizer(path)
    runner = make_runner(path, max_model_len=window)
    assert runner.model.max_model_len == (window or 64)
    prompts = [np.random.default_rng(3).integers(3, 97, length).tolist(), [5, 9, 60]]
    outputs = Driver(runner=runner).generate(prompts, num_tokens=8)
    assert outputs[0] == reference_tokens(reference, prompts[0], 8)
    assert (outputs[1] == reference_tokens(reference, prompts[1], 8)) is not is_long
    assert Driver(runner=runner).generate(prompts[1:], num_tokens=8) == outputs[1:]


# ---- types of weights ----

K_QUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
QUANTS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
PLAIN = ["F32", "F16", "BF16"]


def make_stored(kind: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Random weights of a type; the scales of K-quants, half floats, are made finite."""
    quant = GGMLQuantizationType[kind]
    rng = np.random.default_rng(1)
    if kind not in K_QUANTS:
        stored = quantize(rng.standard_normal(shape).astype(np.float32), quant)
        return np.ascontiguousarray(stored).view(np.uint8)
    block_size, block_bytes = GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // block_size, block_bytes), dtype=np.uint8)
    scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for offset in scales[kind]:
        half = rng.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = half.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*shape[:-1], -1)


def write_tensors(path: Path, tensors: dict[str, tuple[str, NDArray[np.uint8]]]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (kind, stored) in tensors.items():
        writer.add_tensor(name, stored, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", [*PLAIN, *QUANTS, *K_QUANTS])
def test_weights_of_each_type_are_those_of_the_package(kind: str, tmp_path: Path) -> None:
    shape = (700, 512)  # more than one slice, and not a multiple of it
    stored = make_stored(kind, shape)
    path = write_tensors(tmp_path / "x.gguf", {"w": (kind, stored)})
    with make_pool() as pool:
        values = to_tensor(read_gguf(path).tensors["w"], pool)
    expected = dequantize(stored, GGMLQuantizationType[kind]).reshape(shape)
    assert np.isfinite(expected).all()
    torch.testing.assert_close(values.float(), torch.from_numpy(expected), rtol=0, atol=0)


def test_weights_of_16_bits_are_not_widened(tmp_path: Path) -> None:
    tensors = {kind: (kind, make_stored(kind, (8, 32))) for kind in PLAIN}
    content = read_gguf(write_tensors(tmp_path / "x.gguf", tensors))
    with make_pool() as pool:
        dtypes = [to_tensor(content.tensors[kind], pool).dtype for kind in PLAIN]
    assert dtypes == [torch.float32, torch.float16, torch.bfloat16]


def test_stacks_of_matrices_keep_their_shape(tmp_path: Path) -> None:
    stored = make_stored("Q8_0", (3, 4, 64))
    path = write_tensors(tmp_path / "x.gguf", {"w": ("Q8_0", stored)})
    with make_pool() as pool:
        assert to_tensor(read_gguf(path).tensors["w"], pool).shape == (3, 4, 64)


def test_weights_of_a_type_that_the_package_lacks_are_refused(tmp_path: Path) -> None:
    stored = np.zeros((2, 64), dtype=np.uint8)
    path = write_tensors(tmp_path / "x.gguf", {"w": ("I8", stored)})
    with make_pool() as pool, pytest.raises(ModelError, match="weights of type I8 are not"):
        to_tensor(read_gguf(path).tensors["w"], pool)


def test_loaded_weights_do_not_write_to_the_file(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "x.gguf", {"w": ("F32", make_stored("F32", (4, 8)))})
    before = path.read_bytes()
    with make_pool() as pool:
        to_tensor(read_gguf(path).tensors["w"], pool).zero_()
    assert path.read_bytes() == before


# ---- the container ----


def test_fields_are_those_of_the_package(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3")
    theirs = gguf.GGUFReader(path)
    ours = read_gguf(path)
    for name, value in ours.fields.items():
        field = theirs.get_field(name)
        assert field is not None
        assert field.contents() == value
    assert [(t.name, tuple(t.shape.tolist()[::-1])) for t in theirs.tensors] == [
        (t.name, t.shape) for t in ours.tensors.values()
    ]


@pytest.mark.parametrize("share", [0.001, 0.02, 0.3, 0.9, 0.9999])
def test_file_that_is_cut_off_is_refused(share: float, tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError, match="no readable GGUF file"):
        open_path(path)


def test_counts_beyond_the_file_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(64))
    with pytest.raises(ModelError, match="counts more entries than it has bytes"):
        open_path(path)


def make_parts(tmp_path: Path) -> tuple[Any, list[Path]]:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    make_gguf(tmp_path / "Tiny-Q8_0.gguf", reference, "qwen3", split_max_tensors=12)
    return reference, sorted(tmp_path.glob("*.gguf"))


def test_model_in_parts_equals_transformers(tmp_path: Path) -> None:
    reference, parts = make_parts(tmp_path)
    assert len(parts) > 2
    runner = make_runner(parts[0])
    assert runner.model.name == "Tiny"
    prompt = [5, 9, 60, 3]
    expected = reference_tokens(reference, prompt, 8)
    assert Driver(runner=runner).generate([prompt], num_tokens=8) == [expected]


def test_part_that_is_missing_is_named(tmp_path: Path) -> None:
    _, parts = make_parts(tmp_path)
    parts[1].unlink()
    with pytest.raises(ModelError, match=f"lacks its part {parts[1].name}"):
        open_path(parts[0])


def test_later_part_is_refused(tmp_path: Path) -> None:
    _, parts = make_parts(tmp_path)
    with pytest.raises(ModelError, match=f"is not the first of its parts; give {parts[0].name}"):
        open_path(parts[1])


# ---- tokenizers ----


def make_vocab(**fields: Any) -> GGUFVocab:
    alphabet = ["a", "b", "ab", "Ġ", "1", "2", "<s>", "</s>", "<tool>"]
    defaults: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": alphabet,
        "token_types": [1] * 6 + [3, 3, 4],
        "merges": ["a b"],
        "bos": "<s>",
        "eos": "</s>",
        "add_bos": False,
        "add_eos": False,
    }
    return GGUFVocab(**(defaults | fields))


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "gpt-2", "default"])
def test_byte_level_tokenizers_are_built(pre: str) -> None:
    tokenizer = Tokenizer.from_str(build(make_vocab(pre=pre)))
    encoding = tokenizer.encode("ab 12<tool></s>")
    assert encoding.tokens == ["ab", "Ġ", "1", "2", "<tool>", "</s>"]
    assert tokenizer.decode(encoding.ids) == "ab 12<tool>"
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == "ab 12<tool></s>"


def test_built_tokenizer_adds_the_tokens_that_it_is_told_to() -> None:
    tokenizer = Tokenizer.from_str(build(make_vocab(add_bos=True, add_eos=True)))
    assert tokenizer.encode("ab").tokens == ["<s>", "ab", "</s>"]
    assert tokenizer.encode("ab", add_special_tokens=False).tokens == ["ab"]


def test_way_to_cut_words_that_is_not_known_is_refused() -> None:
    with pytest.raises(ModelError, match="called 'unheard-of', which is not supported; use a"):
        build(make_vocab(pre="unheard-of"))


def test_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(ModelError, match="tokenizers of kind 'bert' are not supported"):
        build(make_vocab(model="bert"))


SPLIT_TEXTS = [
    "It's 12345 o'clock, I'LL go  now\n\n  x=1;\tHelloWorld HTTPServer",
    "naïve Ünïcödé 東京タワー 한국어 мир \u0301e 🚂🚃 ...!?\r\n end ",
    "if (a_b[3] != 'don't') { return 3.14; } // ok/",
]


@pytest.mark.parametrize(
    "pre", ["llama-bpe", "dbrx", "tekken", "qwen2", "megrez", "gpt-4o", "minimax-m2", "gpt-2"]
)
def test_words_are_cut_as_transformers_cuts_them(pre: str) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    alphabet = [*pre_tokenizers.ByteLevel.alphabet()]
    vocab = make_vocab(
        pre=pre, tokens=alphabet, token_types=[1] * len(alphabet), merges=[], bos=None, eos=None
    )
    ours = Tokenizer.from_str(build(vocab)).pre_tokenizer
    theirs, _ = convert_gguf_tokenizer(
        "any",
        {
            "tokenizer_type": "gpt2",
            "pre_tokenizer_type": pre,
            "tokens": alphabet,
            "merges": [],
            "token_type": [1] * len(alphabet),
        },
    )
    for text in SPLIT_TEXTS:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenizer.pre_tokenize_str(text)


def test_digits_of_deepseek_are_cut_by_three_and_han_runs_apart() -> None:
    cut = Tokenizer.from_str(build(make_vocab(pre="deepseek-v3"))).pre_tokenizer
    words = [word for word, _ in cut.pre_tokenize_str("ab 12345 x!")]
    assert words == ["ab", "Ġ", "123", "45", "Ġx", "!"]


MERGES = ["1 2", "12 3", "4 5", "123 45", "Ġ 1", "Ġ $", "$ 1", ". .", ".. .", "a +", "+ b"]
# The tokens that llama.cpp's `llama-tokenize` (build 11434) makes with these merges of a file
# without tokenizer.ggml.pre.
UNNAMED_CUTS = {
    "cost $12345 12": ["c", "o", "s", "t", "Ġ", "$", "123", "45", "Ġ", "12"],
    "a+b... 123": ["a", "+", "b", "...", "Ġ", "123"],
    "(12)  $1 !": ["(", "12", ")", "Ġ", "Ġ", "$", "1", "Ġ", "!"],
}


def test_file_that_names_no_way_to_cut_words_is_cut_as_by_llama_cpp_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += dict.fromkeys(merge.replace(" ", "") for merge in MERGES)
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    for pre in (None, "gpt-2"):
        path = make_gguf(tmp_path / "x.gguf", reference, "qwen3", tokens=tokens, pre=pre)
        files = open_path(path).tokenizer_files()
        tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
        cuts = {text: tokenizer.encode(text).tokens for text in UNNAMED_CUTS}
        assert (cuts == UNNAMED_CUTS) is (pre is None)
    warnings = [record.getMessage() for record in caplog.records]
    assert [text for text in warnings if "how its tokenizer cuts words" in text] == warnings[:1]


def test_what_is_wrong_with_a_file_is_said_with_its_path(tmp_path: Path) -> None:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += dict.fromkeys(merge.replace(" ", "") for merge in MERGES)
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3", tokens=tokens, pre="no-such-way")
    with pytest.raises(ModelError, match=r"x\.gguf: the tokenizer cuts words in a way called"):
        make_runner(path).tokenizer_files()


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", ["<s>", "ab"]), ("qwen2", ["ab"])])
def test_file_that_says_nothing_of_a_first_token_means_what_its_kind_means(
    pre: str, expected: list[str]
) -> None:
    added = adds_bos(model="gpt2", pre=pre)
    tokenizer = Tokenizer.from_str(build(make_vocab(pre=pre, add_bos=added)))
    assert tokenizer.encode("ab").tokens == expected


def make_sentencepiece(*, with_prefix: bool = True) -> GGUFVocab:
    """A vocabulary as sentencepiece trains it: bytes, letters, and pieces that score by rank."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁t", "he", "▁the", "in", "er", "▁a", "nd", "▁and", "▁▁", "▁▁▁▁", "the", "ing"]
    letters = list("▁etaoinshrdlucmfwypvbgkqjxzABCTI.,'0123456789")
    tokens = [*special, *byte_tokens, *pieces, *letters, "<tool>"]
    return GGUFVocab(
        model="llama",
        pre="default",
        tokens=tokens,
        token_types=[2, 3, 3] + [6] * 256 + [1] * (len(pieces) + len(letters)) + [4],
        scores=[0.0] * 259 + [-float(i) for i in range(len(pieces) + len(letters))] + [0.0],
        merges=[],
        bos="<s>",
        eos="</s>",
        unk="<unk>",
        add_bos=adds_bos(model="llama", pre="default"),
        add_eos=False,
        add_space_prefix=with_prefix,
    )


@pytest.mark.parametrize("with_prefix", [True, False])
def test_sentencepiece_tokens_equal_transformers(with_prefix: bool) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    vocab = make_sentencepiece(with_prefix=with_prefix)
    ours = Tokenizer.from_str(build(vocab))
    theirs, _ = convert_gguf_tokenizer(
        "phi3" if with_prefix else "gemma",  # whose tokenizer.json is built as Llama 2's
        {
            "tokenizer_type": "llama",
            "tokens": vocab.tokens,
            "scores": vocab.scores,
            "token_type": vocab.token_types,
        }
        | ({} if with_prefix else {"merges": [" ".join(m) for m in merges_of(ours)]}),
    )
    for text in [
        "the thing and  the    other",
        "  Then a tithe, banding",
        "日本 émoji 🚂\n\ttab",
        "<tool>the</s> and",
        "",
    ]:
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.encode(text).ids == [1, *ids]


# As `llama-tokenize -m X.gguf --stdin --ids --no-bos` of llama.cpp (build 11434) prints them for a
# file of `make_sentencepiece`'s vocabulary: with add_space_prefix, and without it.
SENTENCEPIECE_IDS: list[tuple[str, list[int], list[int]]] = [
    (
        "<s>[INST] the thing</s> and",
        [1, 271, 94, 302, 81, 86, 301, 96, 261, 259, 279, 270, 2, 271, 266],
        [1, 94, 302, 81, 86, 301, 96, 261, 259, 279, 270, 2, 266],
    ),
    (" the", [271, 261], [261]),
    ("  the", [267, 261], [271, 261]),
    ("</s>the", [2, 261], [2, 269]),
    ("<s>  the", [1, 267, 261], [1, 271, 261]),
    (" ", [267], [271]),
    (
        "<tool> the<tool>the <unk>er",
        [316, 271, 261, 316, 261, 271, 0, 271, 263],
        [316, 261, 316, 269, 271, 0, 263],
    ),
    ("\n the", [271, 13, 261], [13, 261]),
    ("▁the", [271, 261], [261]),
]


@pytest.mark.parametrize(("text", "prefixed", "plain"), SENTENCEPIECE_IDS)
def test_sentencepiece_tokens_equal_llama_cpp(
    text: str, prefixed: list[int], plain: list[int]
) -> None:
    for with_prefix, expected in ((True, prefixed), (False, plain)):
        tokenizer = Tokenizer.from_str(build(make_sentencepiece(with_prefix=with_prefix)))
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected


def test_special_tokens_of_phi3_take_the_space_behind_them() -> None:
    vocab = make_sentencepiece()
    for strips, expected in ((True, ["</s>", "▁the"]), (False, ["</s>", "▁", "▁the"])):
        vocab = dataclasses.replace(vocab, strips_after_special=strips)
        tokenizer = Tokenizer.from_str(build(vocab))
        for text, tokens in (("</s> the", expected), ("<s> the", ["<s>", "▁", "▁the"])):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert [vocab.tokens[token_id] for token_id in ids] == tokens


def merges_of(tokenizer: Tokenizer) -> list[list[str]]:
    merges: list[list[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return merges


def test_sentencepiece_text_comes_back_whole() -> None:
    tokenizer = Tokenizer.from_str(build(make_sentencepiece()))
    for text in ["the thing and  the    other", "日本 émoji 🚂", "A 12"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_without_scores_is_refused() -> None:
    with pytest.raises(ModelError, match="tokenizer has no scores"):
        build(make_vocab(model="llama"))


# ---- the demo model ----


@pytest.mark.model
@pytest.mark.skipif(not DEMO.exists(), reason="run `make model`")
def test_demo_tokenizer_equals_transformers() -> None:
    source = open_path(DEMO)
    files = source.tokenizer_files()
    ours = Tokenizer.from_str(files["tokenizer.json"].decode())
    theirs = demo().tokenizer
    for text in TEXTS:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"]
        assert ours.decode(ids, skip_special_tokens=False) == text
    config = json.loads(files["tokenizer_config.json"])
    assert config["chat_template"] == theirs.chat_template
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert source.eos_token_ids() == (2,)
    assert source.name == "SmolLM2-135M-Instruct"
    assert model_spec(source.config).architecture == "LlamaForCausalLM"


@pytest.mark.model
@pytest.mark.skipif(not DEMO.exists(), reason="run `make model`")
def test_demo_model_equals_transformers_token_for_token() -> None:
    runner = make_runner(DEMO)
    tokenizer = Tokenizer.from_str(runner.tokenizer_files()["tokenizer.json"].decode())
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    outputs = Driver(runner=runner).generate(prompts, num_tokens=20)
    model = demo().model
    expected = [greedy_tokens(model, *each) for each in zip(prompts, outputs, strict=True)]
    assert outputs == expected
    assert Driver(runner=runner, chunk=8).generate(prompts, num_tokens=20) == expected
    assert "Paris" in tokenizer.decode(expected[0])


@pytest.mark.model
@pytest.mark.skipif(not DEMO.exists(), reason="run `make model`")
@pytest.mark.parametrize("num_right", [0, 3, 8])
def test_reference_is_what_transformers_generates_whatever_is_guessed(num_right: int) -> None:
    prompt = demo().tokenizer(PROMPTS[1])["input_ids"]
    expected = reference_tokens(demo().model, prompt, 8)
    guess = [*expected[:num_right], *[0] * (8 - num_right)]
    assert greedy_tokens(demo().model, prompt, guess) == expected


def rewrite_demo(path: Path, kind: str, *, num_layers: int) -> Path:
    """Writes the demo model's first layers with their matrices in another type."""
    source = read(str(DEMO))
    writer = gguf.GGUFWriter(path, "llama")
    for field in source.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            main, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
            value = num_layers if field.name == "llama.block_count" else field.contents()
            writer.add_key_value(field.name, value, main, sub_type=sub)
    quant = GGMLQuantizationType[kind]
    for tensor in source.tensors:
        layer = re.match(r"blk\.(\d+)\.", tensor.name)
        if layer and int(layer[1]) >= num_layers:
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1 and values.shape[-1] % 32 == 0:
            writer.add_tensor(tensor.name, quantize(values, quant), raw_dtype=quant)
        else:
            writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
