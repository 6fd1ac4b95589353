"""Models of GGUF files: what their fields mean, and whole models against transformers."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.config import MAX_CONTEXT_LENGTH
from signalbox_worker.models import model_spec
from signalbox_worker.models.decoder_config import qwen3_config
from signalbox_worker.models.gemma_config import gemma3_config
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import assert_greedy, make_prompts, make_runner
from tests.gpu_worker.runner.loading.gguf_files import (
    ARCHITECTURES,
    make_gguf,
    open_gguf,
    open_path,
)
from tests.gpu_worker.tiny_models import (
    THROUGH_TRANSFORMERS,
    YARN_ROPE,
    architecture_of,
    make_model,
    reference_tokens,
)
from tests.transformers_demo import DEMO, demo, greedy_tokens

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo")]

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
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


@pytest.mark.compares(how="from GGUF", of=architecture_of, gguf=ARCHITECTURES.get)
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_gguf_of_each_family_equals_transformers(family: str, tmp_path: Path) -> None:
    flags: dict[str, Any] = {}
    if family in ("gemma2", "gemma3"):  # files do not say it: it is the head size
        flags["query_pre_attn_scalar"] = 8
    if family == "gpt-oss":  # nor this, which is the same in all models
        flags["swiglu_limit"] = 7.0
    if family == "gemma3":
        flags |= {"num_hidden_layers": 7, "layer_types": None, "rope_parameters": GEMMA3_ROPE}
    if family in ("cohere2", "olmo3"):
        flags |= {"num_hidden_layers": 5, "layer_types": None}
    is_native = family in THROUGH_TRANSFORMERS  # or else natively
    flags |= {"head_dim": 16, "hidden_size": 96} if is_native else {"head_dim": 8}
    reference = make_model(tmp_path / "hf", family, **flags)
    path = make_gguf(tmp_path / "Tiny.Q8_0.gguf", reference, ARCHITECTURES[family])
    runner = make_runner(path)
    assert_greedy(runner, reference, [[5, 9, 60, 3], [8] * 20], 12)
    assert (runner.model.name, runner.model.started_as) == ("Tiny", (str(path),))
    assert runner.model.eos_token_ids == (95, 96)


# ---- fields ----


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"attention_factor": 1.7},
        {"beta_fast": 8.0, "beta_slow": 2.0, "factor": 2.5},
        {"original_max_position_embeddings": 256},
    ],
)
def test_yarn_of_a_gguf_is_that_of_transformers(variant: dict[str, Any], tmp_path: Path) -> None:
    rope = YARN_ROPE | variant
    reference = make_model(tmp_path / "hf", "qwen3", rope_parameters=rope)
    source = open_path(make_gguf(tmp_path / "x.gguf", reference, "qwen3"))
    cos, sin = map(torch.from_numpy, qwen3_config(source.config).rope.cos_sin(16, 256))
    theirs = reference.model.rotary_emb(torch.zeros(1), torch.arange(256)[None])
    torch.testing.assert_close(cos, theirs[0][0, :, :8], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sin, theirs[1][0, :, :8], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "extra", "expected"),
    [
        ("llama2", {"rope.scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ("llama2", {"rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ("llama2", {"rope.scaling.factor": 0.0}, {"rope_type": "default"}),
        (
            "llama2",
            {"rope.scaling.type": "none", "rope.scaling.factor": 2.0},
            {"rope_type": "default"},
        ),
        (
            "llama-yarn",  # llama.cpp's factor multiplies that of YaRN
            {"rope.scaling.attn_factor": 0.5},
            YARN_ROPE
            | {"attention_factor": pytest.approx(0.5 * (0.1 * math.log(4) + 1))}
            | {"beta_fast": 32.0, "beta_slow": 1.0},
        ),
    ],
)
def test_scaling_is_read_as_llama_cpp_reads_it(
    family: str, extra: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    source = open_gguf(tmp_path, family, extra)
    assert source.config["rope_parameters"] == {"rope_theta": 10000.0} | expected


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llama2", "llama.no.such_key", 1),
        ("llama2", "llama.logit_scale", 2.0),
        ("llama2", "llama.residual_scale", 0.5),
        ("llama2", "llama.embedding_scale", 12.0),
        ("llama2", "llama.attention.scale", 0.1),
        ("llama2", "llama.attention.causal", False),
        ("llama2", "llama.rope.scaling.attn_factor", 1.2),
        ("llama2", "llama.rope.freq_base_swa", 5000.0),
        ("llama2", "tokenizer.ggml.remove_extra_whitespaces", True),
        ("llama2", "tokenizer.ggml.normalizer.lowercase", True),
        ("llama2", "tokenizer.ggml.suppress_tokens", [3]),
        ("llama-yarn", "llama.rope.scaling.yarn_log_multiplier", 0.1),
        ("mixtral", "llama.expert_gating_func", 2),
        ("qwen2", "qwen2.final_logit_softcapping", 30.0),
        ("qwen3", "qwen3.attention.temperature_scale", 0.1),
        ("qwen3-moe", "qwen3moe.expert_shared_count", 1),
        ("qwen3-moe", "qwen3moe.expert_weights_scale", 2.5),
        ("gemma", "gemma.attn_logit_softcapping", 50.0),
        ("gemma3", "gemma3.rope.local.freq_base", 5000.0),
    ],
)
def test_field_that_is_not_read_is_refused_by_name(
    family: str, key: str, value: Any, tmp_path: Path
) -> None:
    source = open_gguf(tmp_path, family, {key.removeprefix(f"{ARCHITECTURES[family]}."): value})
    with pytest.raises(ModelError, match=rf"says {key} = .*, which is not supported"):
        _ = source.config


ROTATES = r"rotates by a \w+ of .*; fetch a sound file"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope.freq_base", math.nan, ROTATES),
        ("rope.scaling.factor", -4.0, ROTATES),
        ("rope.scaling.yarn_beta_fast", math.inf, ROTATES),
        ("rope.scaling.attn_factor", 0.0, ROTATES),
        ("rope.scaling.original_context_length", 0, ROTATES),
        ("rope.scaling.type", "su", "says rope scaling 'su', which is not supported"),
        ("attention.head_count_kv", [2, 2, 6], r"has a qwen3.attention.head_count_kv for each la"),
        ("attention.sliding_window", 21, "does not say which layers its sliding window is for"),
        ("attention.value_length", 16, "has values of another head size than its keys"),
        ("rope.dimension_count", 4, "rotates a part of each head"),
        ("context_length", MAX_CONTEXT_LENGTH + 1, r"length of 4194305, .* \[1, 4194304\]"),
        ("context_length", 0, "has a context_length of 0"),
        ("context_length", "long", "context_length = long, which is no whole number"),
        ("attention.head_count", 2.5, "attention.head_count = 2.5, which is no whole number"),
        ("attention.layer_norm_rms_epsilon", "low", "epsilon = low, which is no number"),
        ("attention.head_count", 0xFFFFFFFF, "= 4294967295, which is not below 2147483648"),
        ("attention.key_length", 0, "attention.key_length = 0, which is not positive"),
        ("block_count", 1 << 30, "says 1073741824 layers, of which it lacks tensors"),
    ],
)
def test_field_of_a_value_that_is_not_served_is_refused(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    source = open_gguf(tmp_path, "qwen3", yarn | {key: value}, head_dim=8)
    with pytest.raises(ModelError, match=message):
        _ = source.config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokens", 3, "has no list of str for tokenizer.ggml.tokens"),
        ("token_type", ["a"], "has no list of int for tokenizer.ggml.token_type"),
        ("bos_token_id", "a", "has a for bos_token_id, which is no token id"),
        ("eot_token_id", True, "has True for eot_token_id, which is no token id"),
        ("eos_token_ids", 3, "has no list of int for tokenizer.ggml.eos_token_ids"),
    ],
)
def test_tokenizer_of_other_types_is_refused(
    key: str, value: Any, message: str, tmp_path: Path
) -> None:
    source = open_gguf(tmp_path, "qwen3", {f"tokenizer.ggml.{key}": value})
    with pytest.raises(ModelError, match=message):
        source.eos_token_ids(), source.tokenizer_files()


def test_divisors_that_are_not_one_for_each_frequency_are_refused(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "llama3", head_dim=16)
    path = make_gguf(tmp_path / "x.gguf", reference, "llama", extra={"attention.key_length": 32})
    with pytest.raises(ModelError, match="has 8 divisors for 16 frequencies"):
        _ = open_path(path).config


def test_experts_without_a_size_share_that_of_the_feed_forward(tmp_path: Path) -> None:
    extra = {"expert_feed_forward_length": 0, "feed_forward_length": 96}
    config = open_gguf(tmp_path, "qwen3-moe", extra).config
    assert config["moe_intermediate_size"] == 96 // config["num_experts_per_tok"]


def test_fields_that_change_nothing_are_taken(tmp_path: Path) -> None:
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
    source = open_gguf(tmp_path, "qwen3-moe", extra)
    assert source.config["rope_parameters"]["rope_type"] == "default"
    assert source.config["num_experts"] == 8


def test_window_of_each_layer_may_be_listed(tmp_path: Path) -> None:
    extra = {"attention.sliding_window_pattern": [True, False, True]}
    source = open_gguf(tmp_path, "gemma3", extra)
    assert gemma3_config(source.config).sliding_windows == (21, None, 21)


def test_every_token_that_a_file_says_ends_a_sequence_does(tmp_path: Path) -> None:
    extra = {
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": -1,  # none
        "tokenizer.ggml.eos_token_ids": [3, 95],
    }
    assert open_gguf(tmp_path, "qwen3", extra).eos_token_ids() == (3, 7, 95, 96)


# ---- through transformers ----


def make_phi3(folder: Path, **flags: Any) -> Any:
    shape = {"num_hidden_layers": 2, "num_key_value_heads": 2}
    return make_model(folder, "phi3", **shape | flags)


@pytest.mark.compares(how="from GGUF", of=["Phi3ForCausalLM"], gguf=["phi3"])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("impl", ["signalbox", "transformers"])
def test_gguf_with_fused_projections_equals_transformers(
    impl: str, is_tied: bool, tmp_path: Path
) -> None:
    reference = make_phi3(tmp_path / "hf", tie_word_embeddings=is_tied)
    path = make_gguf(tmp_path / "x.gguf", reference, "phi3")
    assert_greedy(make_runner(path, model_impl=impl), reference, [[5, 9, 60, 3] * 8])


def test_blocks_of_fused_projections_are_multiplied_natively(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shape = {"hidden_size": 96, "intermediate_size": 96}
    reference = make_phi3(tmp_path / "hf", **shape)
    path = make_gguf(tmp_path / "x.gguf", reference, "phi3", kind_of=lambda _: "Q8_0")
    with caplog.at_level(logging.INFO):
        native, plain = (make_runner(path, cpu_backend=name) for name in ("native", "torch"))
    assert "Q8_0 of the file as it is" in caplog.text
    prompts = make_prompts(1, 17, 40)
    expected = Driver(runner=plain).generate(prompts, num_tokens=8)
    assert Driver(runner=native, chunk=7).generate(prompts, num_tokens=8) == expected


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("impl", ["signalbox", "transformers"])
def test_gguf_runs_through_transformers_where_ours_would_do(
    impl: str, is_tied: bool, tmp_path: Path
) -> None:
    flags = {"tie_word_embeddings": is_tied, "rope_parameters": YARN_ROPE}
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8, **flags)
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3")
    assert_greedy(make_runner(path, model_impl=impl), reference, [[5, 9, 60, 3] * 20], 12)


LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [1.5 + 2.5 * i for i in range(6)],
}


WHOLE_LONG_ROPE = LONG_ROPE | {
    "partial_rotary_factor": 1.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 2.5 * i for i in range(8)],
}


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("window", "length", "is_long"), [(None, 40, False), (64, 40, False), (200, 90, True)]
)
def test_longrope_has_the_factors_of_its_window(
    window: int | None,
    length: int,
    is_long: bool,
    backend: str,
    is_part: bool,
    form: str,
    tmp_path: Path,
) -> None:
    """PyTorch rotates a part of each head through transformers."""
    path = tmp_path / "hf"
    reference = make_phi3(
        path,
        sliding_window=None,
        hidden_size=96,
        rope_parameters=LONG_ROPE if is_part else WHOLE_LONG_ROPE,
        original_max_position_embeddings=64,
    )
    if form == "gguf":
        extra = {"rope.dimension_count": 12 if is_part else 16, "rope.scaling.attn_factor": 1.2}
        reference.model.rotary_emb.attention_scaling = extra["rope.scaling.attn_factor"]
        path = make_gguf(tmp_path / "x.gguf", reference, "phi3", extra=extra)
    impl = "auto" if is_part and backend == "torch" else "signalbox"
    runner = make_runner(path, max_model_len=window, cpu_backend=backend, model_impl=impl)
    assert runner.model.numerics.kernels.startswith(backend)
    assert runner.model.max_model_len == (window or 64)
    prompts = [np.random.default_rng(3).integers(3, 97, length).tolist(), [5, 9, 60]]
    outputs = Driver(runner=runner).generate(prompts, num_tokens=8)
    assert outputs[0] == reference_tokens(reference, prompts[0], 8)
    assert (outputs[1] == reference_tokens(reference, prompts[1], 8)) is not is_long
    assert Driver(runner=runner).generate(prompts[1:], num_tokens=8) == outputs[1:]


# ---- files in parts ----


def make_parts(folder: Path) -> tuple[Any, list[Path]]:
    reference = make_model(folder / "hf", "qwen3", head_dim=8)
    make_gguf(folder / "Tiny-Q8_0.gguf", reference, "qwen3", split_max_tensors=12)
    return reference, sorted(folder.glob("*.gguf"))


def test_model_in_parts_equals_transformers(tmp_path: Path) -> None:
    reference, parts = make_parts(tmp_path)
    assert len(parts) > 2
    runner = make_runner(parts[0])
    assert runner.model.name == "Tiny"
    assert_greedy(runner, reference, [[5, 9, 60, 3]])


def test_part_that_is_missing_or_not_the_first_is_named(tmp_path: Path) -> None:
    _, parts = make_parts(tmp_path)
    with pytest.raises(ModelError, match=f"is not the first of its parts; give {parts[0].name}"):
        open_path(parts[1])
    parts[1].unlink()
    with pytest.raises(ModelError, match=f"lacks its part {parts[1].name}"):
        open_path(parts[0])


# ---- the demo model ----

needs_demo = pytest.mark.skipif(not DEMO.exists(), reason="run `make model`")


@pytest.mark.model
@pytest.mark.compares(how="a real tokenizer", of=["LlamaForCausalLM"], gguf=["llama"])
@needs_demo
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
@needs_demo
def test_reference_is_what_transformers_generates_whatever_is_guessed() -> None:
    prompt = demo().tokenizer(PROMPTS[1])["input_ids"]
    expected = reference_tokens(demo().model, prompt, 8)
    for num_right in (0, 3, 8):
        guess = [*expected[:num_right], *[0] * (8 - num_right)]
        assert greedy_tokens(demo().model, prompt, guess) == expected
