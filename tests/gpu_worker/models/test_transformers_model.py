"""Models without a file of ours, through transformers' attention interface, against its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from gpu_worker.models import find_model
from gpu_worker.models.transformers_model import TransformersModel
from gpu_worker.runner.model_runner import ModelRunner
from tests.gpu_worker.generation import Driver, make_batch, make_sequence
from tests.gpu_worker.loading.test_gguf_model import make_gguf
from tests.gpu_worker.tiny_models import (
    VOCAB,
    YARN_ROPE,
    make_model,
    make_tokenizer,
    reference_tokens,
)
from tests.rounding import LOGITS

pytestmark = pytest.mark.slow

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MLA = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}

SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": ("GPTNeoX", {}),
    "phi": ("Phi", {"num_key_value_heads": 6}),
    "phi3": ("Phi3", {"num_key_value_heads": 2, "sliding_window": 19}),
    "stablelm": ("StableLm", {"num_key_value_heads": 2}),
    "olmo2": ("Olmo2", {"num_key_value_heads": 2}),
    "granite": ("Granite", {"num_key_value_heads": 2, "logits_scaling": 3.0}),
    "cohere": ("Cohere", {"num_key_value_heads": 2, "logit_scale": 0.5}),
    "starcoder2": ("Starcoder2", {"num_key_value_heads": 2, "sliding_window": 21}),
    "exaone4": (
        "Exaone4",
        {
            "num_key_value_heads": 2,
            "sliding_window": 17,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "deepseek-v3": ("DeepseekV3", _MLA),
    "olmoe": ("Olmoe", {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}),
}


def make_any_model(path: Path, kind: str, flags: dict[str, Any]) -> Any:
    """Saves a random model of any class of transformers; returns it."""
    import transformers

    config_class = getattr(transformers, f"{kind}Config")
    config = config_class(**(_SHAPE | flags))
    torch.manual_seed(0)
    name = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():  # weights that are all ones or zeros hide mistakes
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                is_norm = "norm" in parameter_name
                parameter.uniform_(0.5, 1.5) if is_norm else parameter.normal_(0, 0.3)
    model.save_pretrained(path)
    make_tokenizer(path)
    return model


def make_runner(path: Path, *, dtype: str = "float32", **fields: Any) -> ModelRunner:
    runner = ModelRunner(
        ModelConfig(model=str(path), dtype=dtype, **fields),
        CacheConfig(max_num_seqs=16),
        device_config=DeviceConfig(device="cpu"),
    )
    runner.init_cache_engine(num_gpu_blocks=300, num_cpu_blocks=0)
    return runner


def make_prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, VOCAB, length).tolist() for length in lengths]


def last_logits(runner: ModelRunner, prompt: list[int], chunks: tuple[int, ...]) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    head: Callable[[torch.Tensor], torch.Tensor] = runner._loaded.model.logits
    runner._loaded.model.logits = lambda hidden: kept.append(head(hidden)) or kept[-1]  # type: ignore
    sequence = make_sequence(prompt, [9, 3, 5])
    for chunk in chunks:
        runner.execute(make_batch([(sequence, chunk)], block_size=16))
        sequence.num_computed += chunk
    runner._loaded.model.logits = head  # type: ignore[method-assign]
    return kept[-1][0]


@pytest.mark.parametrize("name", SERVED)
def test_model_without_a_file_of_ours_equals_transformers(name: str, tmp_path: Path) -> None:
    kind, flags = SERVED[name]
    reference = make_any_model(tmp_path, kind, flags)
    runner = make_runner(tmp_path)
    assert isinstance(runner._loaded.model, TransformersModel)
    prompts = make_prompts(1, 5, 17, 33, 60)
    expected = [reference_tokens(reference, prompt, 10) for prompt in prompts]

    assert Driver(runner=runner).generate(prompts, num_tokens=10) == expected
    assert Driver(runner=runner, chunk=7).generate(prompts, num_tokens=10) == expected
    assert Driver(runner=runner, chunk=16).generate(prompts[-1:], num_tokens=10) == expected[-1:]

    with torch.no_grad():
        logits = reference(torch.tensor(prompts[3])[None]).logits[0, -1]
    actual = last_logits(runner, prompts[3], (20, 1, 12))
    torch.testing.assert_close(actual, logits, rtol=0, atol=LOGITS)


@pytest.mark.parametrize("impl", ["auto", "signalbox", "transformers"])
def test_either_implementation_of_ours_gives_the_same_tokens(impl: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path)
    runner = make_runner(tmp_path, model_impl=impl)
    assert isinstance(runner._loaded.model, TransformersModel) is (impl == "transformers")
    prompts = make_prompts(3, 40)
    expected = [reference_tokens(reference, prompt, 12) for prompt in prompts]
    assert Driver(runner=runner).generate(prompts, num_tokens=12) == expected


def test_variant_that_ours_lacks_runs_through_transformers(tmp_path: Path) -> None:
    reference = make_model(tmp_path, "llama2", rope_parameters={**YARN_ROPE, "truncate": False})
    with pytest.raises(ModelError, match="rope scaling 'yarn' is not supported"):
        make_runner(tmp_path, model_impl="signalbox")
    runner = make_runner(tmp_path)
    assert isinstance(runner._loaded.model, TransformersModel)
    (prompt,) = make_prompts(30)
    expected = reference_tokens(reference, prompt, 12)
    assert Driver(runner=runner).generate([prompt], num_tokens=12) == [expected]


def test_gguf_file_runs_through_transformers(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    runner = make_runner(
        make_gguf(tmp_path / "x.gguf", reference, "qwen3"), model_impl="transformers"
    )
    (prompt,) = make_prompts(20)
    expected = reference_tokens(reference, prompt, 8)
    assert Driver(runner=runner).generate([prompt], num_tokens=8) == [expected]


def test_half_precision_is_close(tmp_path: Path) -> None:
    reference = make_any_model(tmp_path, *SERVED["granite"])
    runner = make_runner(tmp_path, dtype="bfloat16")
    (prompt,) = make_prompts(30)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    actual = last_logits(runner, prompt, (29, 1)).float()
    assert torch.nn.functional.cosine_similarity(actual, expected, dim=0) > 0.99


def test_window_that_only_the_mask_knows_is_honoured(tmp_path: Path) -> None:
    """Its layers pass no window to the attention function."""
    flags = {"num_key_value_heads": 2, "sliding_window": 19, "num_local_experts": 4}
    reference = make_any_model(tmp_path, "Phimoe", flags)
    runner = make_runner(tmp_path)
    assert runner._loaded.attention._shape.sliding_windows == (19, 19, 19)  # type: ignore[attr-defined]
    (prompt,) = make_prompts(50)
    expected = reference_tokens(reference, prompt, 8)
    assert Driver(runner=runner).generate([prompt], num_tokens=8) == [expected]


# ---- refusals ----

_CONV = {"conv_bias": False, "layer_types": ["conv", "full_attention", "conv"]}
_GEMMA4_TYPES = ["sliding_attention", "sliding_attention", "full_attention"]
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": ("BloomForCausalLM", {}, "does not use transformers' attention interface"),
    "gpt-j": ("GPTJForCausalLM", {}, "does not use transformers' attention interface"),
    "sinks": ("GptOssForCausalLM", {"num_local_experts": 4}, "its attention needs 's_aux'"),
    "softcap": ("VaultGemmaForCausalLM", {}, "its attention needs 'softcap'"),
    "convolution": ("Lfm2ForCausalLM", _CONV, "it has layers of type 'conv'"),
    "recurrent": ("MambaForCausalLM", {}, "it has layers of type 'linear_attention'"),
    "chunked": ("Llama4ForCausalLM", {}, "it has layers of type 'chunked_attention'"),
    "not causal": ("BertLMHeadModel", {}, "its attention is not causal"),
    "cut-out decoder": ("BartForCausalLM", {}, "it is an encoder with a decoder"),
    "own mask": ("DogeForCausalLM", {}, "its attention has a mask of its own"),
    "head sizes": (
        "Gemma4ForCausalLM",
        {
            "layer_types": _GEMMA4_TYPES,
            "num_key_value_heads": 2,
            "vocab_size_per_layer_input": VOCAB,
        },
        "layer 2 has another head size than layer 0",
    ),
    "encoder-decoder": ("T5ForConditionalGeneration", {}, "it is no causal language model"),
    "unheard-of": ("NeverForCausalLM", {}, "transformers [0-9.]+ does not know it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_model_that_cannot_run_says_why_in_one_line(name: str) -> None:
    architecture, flags, reason = REFUSED[name]
    config = _SHAPE | {"architectures": [architecture]} | flags
    with pytest.raises(ModelError, match=f"not supported: {architecture}: .*{reason}") as error:
        spec = find_model(config, impl="auto", directory=None, trust_remote_code=False)
        spec.read_config(config)
    assert "\n" not in str(error.value)


def test_remote_code_needs_trust(tmp_path: Path) -> None:
    config = {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "m.C"}}
    with pytest.raises(ModelError, match="trust_remote_code is off"):
        find_model(config, impl="auto", directory=tmp_path, trust_remote_code=False)


_REMOTE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_trusted_remote_code_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache")
    )
    path = tmp_path / "model"
    reference = make_model(path)
    (path / "own.py").write_text(_REMOTE)
    file = path / "config.json"
    own = {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    runner = make_runner(path, trust_remote_code=True)
    (prompt,) = make_prompts(20)
    expected = reference_tokens(reference, prompt, 8)
    assert Driver(runner=runner).generate([prompt], num_tokens=8) == [expected]


def test_tokens_that_meet_outside_of_attention_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution that no configuration tells of."""
    from transformers.models.olmo2.modeling_olmo2 import Olmo2MLP

    make_any_model(tmp_path, *SERVED["olmo2"])
    plain = Olmo2MLP.forward
    monkeypatch.setattr(Olmo2MLP, "forward", lambda self, x: plain(self, x + x.roll(1, 1)))
    with pytest.raises(ModelError, match="its tokens meet outside of attention"):
        make_runner(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_any_model(tmp_path, *SERVED["gpt-neox"])
    (shard,) = tmp_path.glob("*.safetensors")
    tensors = load_file(shard)
    del tensors["gpt_neox.layers.1.attention.dense.weight"]
    save_file(tensors, shard, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights are missing, such as '.*1\.attention\.dense"):
        make_runner(tmp_path)


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    make_any_model(tmp_path, *SERVED["gpt-neox"])
    (shard,) = tmp_path.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ModelError, match="cannot be loaded") as error:
        make_runner(tmp_path)
    assert "\n" not in str(error.value)


def test_implementation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="model_impl is 'vllm'; use one of auto, signalbox"):
        ModelConfig(model="m", model_impl="vllm")
