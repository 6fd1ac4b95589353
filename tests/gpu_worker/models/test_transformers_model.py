"""Models without a file of ours, through transformers' attention interface, against its own."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.models import find_model
from signalbox_worker.models.layers import ParallelGroup, Placement
from signalbox_worker.models.transformers.model import TransformersModel
from signalbox_worker.runner.loading.model_source import open_model
from signalbox_worker.runner.loading.opened_model import open_with_config
from tests.gpu_worker.model_runners import (
    WHOLE,
    assert_greedy,
    last_logits,
    make_prompts,
    make_runner,
)
from tests.gpu_worker.quantised_models import make_mxfp4
from tests.gpu_worker.tiny_models import (
    SHAPE,
    THROUGH_TRANSFORMERS,
    VOCAB,
    architecture_of,
    make_model,
)
from tests.rounding import LOGITS

pytestmark = pytest.mark.slow


@pytest.mark.compares(how="through transformers", of=architecture_of)
@pytest.mark.parametrize("family", THROUGH_TRANSFORMERS)
def test_model_without_a_file_of_ours_equals_transformers(family: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family)
    runner = make_runner(tmp_path, cpu_backend="torch")
    assert isinstance(runner.executor.loaded.model, TransformersModel)
    prompts = make_prompts(1, 5, 17, 33, 60)
    assert_greedy(runner, reference, prompts, 10, chunks=(WHOLE, 7))
    assert_greedy(runner, reference, prompts[-1:], 10, chunks=[16])

    with torch.no_grad():
        logits = reference(torch.tensor(prompts[3])[None]).logits[0, -1]
    actual = last_logits(runner, prompts[3], chunks=(20, 1, 12))
    torch.testing.assert_close(actual, logits, rtol=0, atol=LOGITS)


@pytest.mark.parametrize("impl", ["auto", "signalbox", "transformers"])
def test_either_implementation_of_ours_gives_the_same_tokens(impl: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path)
    runner = make_runner(tmp_path, model_impl=impl)
    assert isinstance(runner.executor.loaded.model, TransformersModel) is (impl == "transformers")
    assert_greedy(runner, reference, make_prompts(3, 40), 12)


def test_variant_that_ours_lacks_runs_through_transformers(tmp_path: Path) -> None:
    reference = make_model(tmp_path, "llama2", hidden_act="gelu")
    with pytest.raises(ModelError, match="hidden_act 'gelu' is not supported"):
        make_runner(tmp_path, model_impl="signalbox")
    runner = make_runner(tmp_path)
    assert isinstance(runner.executor.loaded.model, TransformersModel)
    assert_greedy(runner, reference, make_prompts(30), 12)


def test_scaling_beside_parameters_keeps_their_base(tmp_path: Path) -> None:
    """As it does in models of ours; transformers takes the class's base."""
    make_model(tmp_path, "stablelm")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text()) | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }
    file.write_text(json.dumps(config))
    spec = find_model(config, impl="transformers", directory=tmp_path, trust_remote_code=False)
    rotation = spec.read_config(config).hf_config.rope_parameters  # type: ignore[attr-defined]
    assert (rotation["rope_type"], rotation["rope_theta"]) == ("linear", 300.0)


def test_half_precision_is_close(tmp_path: Path) -> None:
    reference = make_model(tmp_path, "stablelm")
    runner = make_runner(tmp_path, dtype="bfloat16")
    (prompt,) = make_prompts(30)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    actual = last_logits(runner, prompt, chunks=(29, 1))
    assert torch.nn.functional.cosine_similarity(actual, expected, dim=0) > 0.99


@pytest.mark.compares(how="through transformers", of=["PhimoeForCausalLM"])
def test_window_that_only_the_mask_knows_is_honoured(tmp_path: Path) -> None:
    """Its layers pass no window to the attention function."""
    reference = make_model(tmp_path, "phimoe")
    runner = make_runner(tmp_path)
    assert runner.executor.loaded.attention._shape.sliding_windows == (19, 19, 19)  # type: ignore[attr-defined]
    assert_greedy(runner, reference, make_prompts(50))


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_experts_in_mxfp4_are_decoded(backend: str, tmp_path: Path) -> None:
    """Natively where they are multiplied, which gives the same values."""
    from transformers import GptOssForCausalLM
    from transformers.utils.quantization_config import Mxfp4Config

    make_mxfp4(tmp_path)
    decoding = Mxfp4Config(dequantize=True)
    reference = GptOssForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, quantization_config=decoding
    ).eval()
    form = "mxfp4" if backend == "native" else "auto"
    runner = make_runner(tmp_path, cpu_backend=backend, quantization=form, block_size=16)
    assert_greedy(runner, reference, make_prompts(1, 5, 33, 60), 10, chunks=(WHOLE, 7))
    if backend == "native":
        assert "MXFP4" in runner.executor.program.weights

    stored = open_model(ModelConfig(model=str(tmp_path)), lambda _: None).stored()
    for index, layer in enumerate(reference.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            ours = stored[f"model.layers.{index}.mlp.experts.{name}.weight"].read()
            theirs = getattr(layer.mlp.experts, name).detach().numpy().swapaxes(1, 2)
            np.testing.assert_array_equal(ours, theirs)


def test_sinks_take_their_share_of_attention(tmp_path: Path) -> None:
    """Without them the tokens would be others, so that a backend that has none must not serve."""
    reference = make_model(tmp_path, "gpt-oss")
    prompt = make_prompts(40)
    assert_greedy(make_runner(tmp_path, cpu_backend="torch"), reference, prompt)
    with torch.no_grad():
        for layer in reference.model.layers:
            layer.self_attn.sinks.fill_(float("-inf"))
    with pytest.raises(AssertionError):
        assert_greedy(make_runner(tmp_path, cpu_backend="torch"), reference, prompt)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8", "int8"])
def test_sinks_in_half_precision_are_close(kv_cache_dtype: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, "gpt-oss")
    types = {"dtype": "bfloat16", "kv_cache_dtype": kv_cache_dtype}
    runner = make_runner(tmp_path, cpu_backend="torch", **types)
    (prompt,) = make_prompts(30)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    actual = last_logits(runner, prompt, chunks=(29, 1))
    assert torch.nn.functional.cosine_similarity(actual, expected, dim=0) > 0.98


# ---- refusals ----


@pytest.mark.parametrize("family", ["deepseek-v3", "stablelm"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int8"}, "takes a native program, but no native program computes"),
        ({"quantization": "fp8"}, "it takes a CUDA device"),
        ({"load_format": "dummy"}, "'dummy' is not served for models that run through transf"),
    ],
)
def test_combinations_that_transformers_lacks_are_refused(
    family: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_model(tmp_path, family)
    with pytest.raises(ModelError, match=message):
        make_runner(tmp_path, **options)
    config = json.loads((tmp_path / "config.json").read_text())
    spec = find_model(config, impl="auto", directory=tmp_path, trust_remote_code=False)
    assert not spec.has_stages
    placement = Placement(torch.device("cpu"), torch.float32)
    with pytest.raises(ModelError, match="is not divided; use another tensor_parallel_size"):
        spec.build(spec.read_config(config), 256, placement, ParallelGroup(0, 2))


_CONV = {"conv_bias": False, "layer_types": ["conv", "full_attention", "conv"]}
_GEMMA4_TYPES = ["sliding_attention", "sliding_attention", "full_attention"]
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": ("BloomForCausalLM", {}, "does not use transformers' attention interface"),
    "gpt-j": ("GPTJForCausalLM", {}, "does not use transformers' attention interface"),
    "falcon": ("FalconForCausalLM", {}, "does not use transformers' attention interface"),
    "falcon-h1": ("FalconH1ForCausalLM", {}, "it has layers of type 'hybrid'"),
    "softcap": ("VaultGemmaForCausalLM", {}, "its attention needs 'softcap'"),
    "convolution": ("Lfm2ForCausalLM", _CONV, "it has layers of type 'conv'"),
    "recurrent": ("MambaForCausalLM", {}, "it has layers of type 'linear_attention'"),
    "indexed": ("DeepseekV32ForCausalLM", {}, "it has layers of type 'indexed_attention'"),
    "compressed": ("DeepseekV4ForCausalLM", {}, "which a KV cache cannot hold"),
    "of several parts": ("Glm5NextForConditionalGeneration", {}, "it is no causal language model"),
    "not causal": ("BertLMHeadModel", {}, "its attention is not causal"),
    "both ways": ("StableLmForCausalLM", {"is_causal": False}, "is_causal is false"),
    "window of the cache": ("StableLmForCausalLM", {"sliding_window": 9}, "a sliding_window of 9"),
    "cut-out decoder": ("BartForCausalLM", {}, "it is an encoder with a decoder"),
    "own mask": ("DogeForCausalLM", {}, "its attention has a mask of its own"),
    "numbers of heads": (
        "Gemma4ForCausalLM",
        {
            "layer_types": _GEMMA4_TYPES,
            "num_key_value_heads": 3,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "vocab_size_per_layer_input": VOCAB,
        },
        "layer 2 has another number of heads than layer 0",
    ),
    "encoder-decoder": ("T5ForConditionalGeneration", {}, "it is no causal language model"),
    "unheard-of": ("NeverForCausalLM", {}, "transformers [0-9.]+ does not know it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_model_that_cannot_run_says_why_in_one_line(name: str) -> None:
    architecture, flags, reason = REFUSED[name]
    config = SHAPE | {"architectures": [architecture]} | flags
    with pytest.raises(ModelError, match=f"not supported: {architecture}: .*{reason}") as error:
        spec = find_model(config, impl="transformers", directory=None, trust_remote_code=False)
        spec.read_config(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("chunk", "scale", "length"), [(64, 8192, 64), (200, 100, 99), (512, 8192, 256)]
)
def test_window_of_llama4_is_that_of_a_chunk(chunk: int, scale: int, length: int) -> None:
    config = SHAPE | {"architectures": ["Llama4ForCausalLM"], "num_experts_per_tok": 1}
    config |= {"attention_chunk_size": chunk, "floor_scale": scale, "num_local_experts": 2}
    spec = find_model(config, impl="auto", directory=None, trust_remote_code=False)
    assert spec.read_config(config).max_position == length


@pytest.mark.parametrize(("kind", "length"), [("linear", 512), ("yarn", 256)])
def test_window_counts_the_scaling(kind: str, length: int) -> None:
    scaling = {"type": kind, "factor": 2.0, "original_max_position_embeddings": 128}
    config = SHAPE | {"architectures": ["Olmo2ForCausalLM"], "rope_scaling": scaling}
    spec = find_model(config, impl="auto", directory=None, trust_remote_code=False)
    assert spec.read_config(config).max_position == length


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


@pytest.fixture
def remote_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets transformers copy code into a folder of the test, and forgets what it loads of it."""
    folder = tmp_path / "cache"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
    yield
    forget_remote_modules()


def forget_remote_modules() -> None:
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


@pytest.mark.usefixtures("remote_modules")
def test_trusted_remote_code_is_run(tmp_path: Path) -> None:
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
    assert_greedy(make_runner(path, trust_remote_code=True), reference, make_prompts(20))


@pytest.mark.usefixtures("remote_modules")
def test_code_of_another_repository_that_is_run_counts_for_kv_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    path = tmp_path / "model"
    make_model(path)
    repository = tmp_path / "hub" / "models--other--code"
    auto = {
        "AutoConfig": "other/code--own.OwnConfig",
        "AutoModelForCausalLM": "other/code--own.OwnForCausalLM",
    }
    file = path / "config.json"
    own = {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": auto}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    model_config = ModelConfig(model=str(path), trust_remote_code=True)
    codes = []
    for commit, code in (("a" * 40, _REMOTE), ("b" * 40, _REMOTE + "CHANGED = True\n")):
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        (snapshot / "own.py").write_text(code)
        opened = open_with_config(model_config, lambda progress: None)
        assert opened.config.architecture == "OwnForCausalLM"
        codes.append({f.path.read_text() for f in opened.files if f.path.name == "own.py"})
        forget_remote_modules()
    assert codes == [{_REMOTE}, {_REMOTE + "CHANGED = True\n"}]


def test_tokens_that_meet_outside_of_attention_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution that no configuration tells of."""
    from transformers.models.olmo2.modeling_olmo2 import Olmo2MLP

    make_model(tmp_path, "olmo2")
    plain = Olmo2MLP.forward
    monkeypatch.setattr(Olmo2MLP, "forward", lambda self, x: plain(self, x + x.roll(1, 1)))
    with pytest.raises(ModelError, match="its tokens depend on each other outside of attention"):
        make_runner(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_model(tmp_path, "gpt-neox")
    name = "gpt_neox.layers.1.attention.dense.weight"
    shards = {shard: load_file(shard) for shard in tmp_path.glob("*.safetensors")}
    (shard,) = (shard for shard, tensors in shards.items() if name in tensors)
    del shards[shard][name]
    save_file(shards[shard], shard, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"weights are missing, such as '.*1\.attention\.dense"):
        make_runner(tmp_path)


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "gpt-neox")
    shard = min(tmp_path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ModelError, match="it ends early") as error:
        make_runner(tmp_path)
    assert "\n" not in str(error.value)


def test_implementation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'auto', 'signalbox' or 'transformers'"):
        ModelConfig(model="m", model_impl="other")
