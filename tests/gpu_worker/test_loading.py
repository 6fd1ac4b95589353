"""Directories, hub ids and GGUF files: what is read, and what is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from gpu_worker.loading import ModelSource, open_model
from gpu_worker.loading.gguf_tokenizer import GGUFVocab, build, can_build
from gpu_worker.models import model_spec
from gpu_worker.runner import ModelRunner
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.tiny_models import make_model, make_tokenizer, reference_tokens

DEMO = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
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


def make_runner(path: Path) -> ModelRunner:
    runner = ModelRunner(
        ModelConfig(model=str(path), dtype="float32", max_model_len=256),
        CacheConfig(max_num_seqs=8),
        device_config=DeviceConfig(device="cpu"),
    )
    runner.init_cache_engine(num_gpu_blocks=200, num_cpu_blocks=0)
    return runner


# ---- directories ----


def test_directory_gives_its_tokenizer_as_plain_strings(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    source = open_path(tmp_path)
    files = source.tokenizer_files()
    config = json.loads(files["tokenizer_config.json"])
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert config["chat_template"] == "{{ messages }}"
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert tokenizer.encode("w3 w5 </s>").ids == [3, 5, 2]


def test_end_of_sequence_ids_come_from_generation_config_and_tokenizer(tmp_path: Path) -> None:
    make_model(tmp_path)
    assert open_path(tmp_path).eos_token_ids() == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert open_path(tmp_path).eos_token_ids() == (2, 5, 7)


def test_named_templates_become_the_default_one(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    files = open_path(tmp_path).tokenizer_files()
    assert json.loads(files["tokenizer_config.json"]) == {"chat_template": "d"}


def test_progress_is_told(tmp_path: Path) -> None:
    make_model(tmp_path)
    lines: list[str] = []
    ModelRunner(ModelConfig(model=str(tmp_path)), CacheConfig(), progress=lines.append)
    assert lines[0] == "loading weights: 25 %"
    assert lines[-1] == f"{tmp_path.name} is loaded on cpu in float32"


def without(path: Path, *names: str) -> None:
    for name in names:
        for file in path.glob(name):
            file.unlink()


def test_directory_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        open_path(tmp_path)


def test_broken_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        open_path(tmp_path)


def test_directory_without_tokenizer_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path)
    without(tmp_path, "tokenizer*")
    with pytest.raises(ModelError, match=r"has no tokenizer; add its tokenizer\.json"):
        make_runner(tmp_path)


def test_directory_without_weights_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path)
    without(tmp_path, "*.safetensors", "*.index.json")
    with pytest.raises(ModelError, match=r"has no \.safetensors"):
        make_runner(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    make_model(tmp_path)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    shards[0].unlink()
    with pytest.raises(ModelError, match=f"lacks {shards[0].name}"):
        make_runner(tmp_path)


def test_truncated_shard_is_named(tmp_path: Path) -> None:
    make_model(tmp_path)
    shard = min(tmp_path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ModelError, match=f"{shard.name} cannot be read"):
        make_runner(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 60}, "has shape .* does not belong to these weights"),
        ({"num_hidden_layers": 4}, r"weights are missing, such as 'model\.layers\.3"),
        ({"num_hidden_layers": 2}, r"unexpected weight 'model\.layers\.2"),
    ],
)
def test_configuration_of_another_model_is_refused(
    change: dict[str, int], message: str, tmp_path: Path
) -> None:
    make_model(tmp_path, "llama2", head_dim=8)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        make_runner(tmp_path)


# ---- names ----


@pytest.mark.parametrize("name", ["no/such/path", "missing.gguf", "a/b.gguf", "./nothing", "word"])
def test_wrong_path_is_one_clear_line(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"model not found: {name}; give a directory") as e:
        open_path(name)
    assert "\n" not in str(e.value)


def test_wrong_path_in_a_directory_that_exists_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(FileNotFoundError, match="model not found: models/smol"):
        open_path("models/smol")


def test_hub_id_is_fetched_and_named_after_its_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path)
    asked: list[object] = []

    def fetch(model: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((model, revision))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert open_path("some-org/Some-Model", revision="v2").name == "Some-Model"
    assert asked == [("some-org/Some-Model", "v2")]


def test_hub_that_cannot_be_reached_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def fetch(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("two\nlines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with pytest.raises(ModelError, match=r"cannot be reached .* give a local directory") as error:
        open_path("some-org/some-model")
    assert "\n" not in str(error.value)


# ---- GGUF ----


@pytest.mark.parametrize("content", [b"", b"not a gguf file, but long enough to look at", b"GGUF"])
def test_file_that_is_no_gguf_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="no readable GGUF"):
        open_path(tmp_path / "x.gguf")


def make_gguf(path: Path, reference: Any, architecture: str) -> Path:
    """Writes a random model as llama.cpp's converter would, in float32."""
    import gguf

    config = reference.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [chr(0x100 + i) for i in range(config.vocab_size - 2)] + ["<|a|>", "<|im_end|>"]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (config.vocab_size - 2) + [3, 3])
    writer.add_token_merges([])
    writer.add_eos_token_id(config.vocab_size - 2)
    for name, tensor in reference.state_dict().items():
        values = tensor.float().numpy()
        if architecture == "llama":
            for part, heads in (
                ("q_proj", config.num_attention_heads),
                ("k_proj", config.num_key_value_heads),
            ):
                if part in name:
                    split = values.reshape(heads, 2, -1, *values.shape[1:])
                    values = split.swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    short = {
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
    [("llama", "llama2"), ("llama", "llama-biased"), ("qwen2", "qwen2"), ("qwen3", "qwen3")],
)
def test_gguf_of_each_family_equals_transformers(
    architecture: str, family: str, tmp_path: Path
) -> None:
    flags = {"mlp_bias": False} if family == "llama-biased" else {}
    reference = make_model(tmp_path / "hf", family, head_dim=8, **flags)
    path = make_gguf(tmp_path / f"Tiny-{architecture}.Q8_0.gguf", reference, architecture)
    runner = make_runner(path)
    prompts = [[5, 9, 60, 3], [8] * 20]
    expected = [reference_tokens(reference, prompt, 12) for prompt in prompts]
    assert Driver(runner=runner).generate(prompts, num_tokens=12) == expected
    assert runner.model.name == f"Tiny-{architecture}"
    assert runner.model.eos_token_ids == (95, 96)


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


def test_other_tokenizers_are_left_to_conversion() -> None:
    assert can_build(make_vocab())
    assert not can_build(make_vocab(model="llama"))
    assert not can_build(make_vocab(pre="unheard-of"))


# ---- the demo model ----


@pytest.mark.model
@pytest.mark.skipif(not DEMO.exists(), reason="run `make model`")
def test_demo_tokenizer_equals_transformers() -> None:
    from transformers import AutoTokenizer

    source = open_path(DEMO)
    files = source.tokenizer_files()
    ours = Tokenizer.from_str(files["tokenizer.json"].decode())
    theirs = AutoTokenizer.from_pretrained(str(DEMO.parent), gguf_file=DEMO.name)
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
    from transformers import AutoModelForCausalLM

    runner = make_runner(DEMO)
    tokenizer = Tokenizer.from_str(runner.tokenizer_files()["tokenizer.json"].decode())
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    reference = AutoModelForCausalLM.from_pretrained(
        str(DEMO.parent), gguf_file=DEMO.name, dtype=torch.float32
    ).eval()
    expected = [reference_tokens(reference, prompt, 20) for prompt in prompts]
    assert Driver(runner=runner).generate(prompts, num_tokens=20) == expected
    assert Driver(runner=runner, chunk=8).generate(prompts, num_tokens=20) == expected
    assert "Paris" in tokenizer.decode(expected[0])
