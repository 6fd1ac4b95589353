"""Folders with several files for one thing: which counts, and where that must be said."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jinja2 import Template
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaForCausalLM

from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.adapters.peft_adapter import open_adapter
from signalbox_worker.files.hub.gguf_file_names import find_variants
from signalbox_worker.runner.loading.model_source import find_model
from tests.gpu_worker.files.adapters.peft_adapters import make_adapter
from tests.gpu_worker.runner.loading.gguf_files import make_gguf, open_path
from tests.gpu_worker.tiny_models import make_llama, make_model

pytestmark = pytest.mark.slow

MARK, OTHER = "model.norm.weight", "model.layers.0.input_layernorm.weight"
INDEX = "model.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"
CHAT = [{"role": "user", "content": "w3"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
]


def write_weights(path: Path, *files: str) -> None:
    """Writes the weights of the folder into each file, where the norm holds the file's number, and
    an index over the last ones, in as many parts, if it is named."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    for number, file in enumerate(files):
        marked = tensors | {MARK: torch.full_like(tensors[MARK], number + 2)}
        if file.endswith(".index.json"):
            end = file.removesuffix(".index.json").rpartition(".")[2]
            parts = [f"part-{number}-{one}.{end}" for one in range(2)]
            places = {name: parts[len(name) % 2] for name in marked}
            (path / file).write_text(json.dumps({"metadata": {}, "weight_map": places}))
            for part in parts:
                save(path / part, {k: v for k, v in marked.items() if places[k] == part})
        else:
            save(path / file, marked)


def save(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    if file.suffix == ".safetensors":
        save_file(tensors, file, metadata={"format": "pt"})
    else:
        torch.save(tensors, file)


@pytest.mark.parametrize(
    "files",
    [
        (INDEX, "model.safetensors"),  # an old index
        ("pytorch_model.bin", INDEX),
        ("pytorch_model.bin", "model.safetensors", TORCH_INDEX),
        (TORCH_INDEX, "pytorch_model.bin"),
        ("adapter_model.safetensors", "pytorch_model.bin"),
        ("model.fp16.safetensors", "model.safetensors"),
        ("model-00001-of-00001.safetensors", TORCH_INDEX),
    ],
)
def test_weights_are_those_that_transformers_takes(files: tuple[str, ...], tmp_path: Path) -> None:
    make_llama(tmp_path)
    write_weights(tmp_path, *files)
    expected = LlamaForCausalLM.from_pretrained(tmp_path).model.norm.weight
    assert open_path(tmp_path).stored()[MARK].read().tolist() == expected.tolist()


def test_file_that_the_configuration_names_counts(tmp_path: Path) -> None:
    make_llama(tmp_path)
    write_weights(tmp_path, "model.safetensors", "other.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    named = config | {"transformers_weights": "other.safetensors"}
    (tmp_path / "config.json").write_text(json.dumps(named))
    expected = LlamaForCausalLM.from_pretrained(tmp_path).model.norm.weight
    assert open_path(tmp_path).stored()[MARK].read().tolist() == expected.tolist()
    (tmp_path / "config.json").write_text(json.dumps(named | {"transformers_weights": "../x"}))
    with pytest.raises(ModelError, match=r"config.json names \.\./x, which is not in its folder"):
        open_path(tmp_path).stored()


@pytest.mark.parametrize(("first", "second"), [("a.safetensors", "b.safetensors"), (INDEX, None)])
def test_tensor_in_two_files_is_refused_unless_both_are_equal(
    first: str, second: str | None, tmp_path: Path
) -> None:
    make_llama(tmp_path)
    write_weights(tmp_path, first)
    parts = sorted(tmp_path.glob("*.safetensors"))
    file = tmp_path / second if second else parts[1]
    tensors = load_file(parts[0]) | (load_file(file) if file.exists() else {})
    double = next(name for name in load_file(parts[0]) if name.endswith("norm.weight"))
    save(file, tensors)
    assert double in open_path(tmp_path).stored()
    save(file, tensors | {double: tensors[double] + 1})
    with pytest.raises(ModelError) as error:
        open_path(tmp_path).stored()
    assert f"{double} of {parts[0].name} and as {double} of {file.name}" in str(error.value)


@pytest.mark.parametrize("second", ["LayerNorm.gamma", "LayerNorm.weight"])
def test_tensor_under_an_old_and_a_new_name_is_refused(second: str, tmp_path: Path) -> None:
    make_llama(tmp_path)
    tensors = {"LayerNorm.gamma": torch.ones(3), "LayerNorm.weight": torch.ones(3)}
    save(tmp_path / "model.safetensors", tensors)
    assert len(open_path(tmp_path).stored()) == 1
    save(tmp_path / "model.safetensors", tensors | {second: torch.zeros(3)})
    with pytest.raises(ModelError, match=r"LayerNorm.weight stands in two places"):
        open_path(tmp_path).stored()


def test_name_that_a_header_has_twice_is_refused(tmp_path: Path) -> None:
    entry = '"a": {"dtype": "F32", "shape": [1], "data_offsets": [%d, %d]}'
    header = f"{{{entry % (0, 4)}, {entry % (4, 8)}}}".encode()
    make_llama(tmp_path)
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="no description of tensors"):
        open_path(tmp_path).stored()


def test_two_files_of_an_old_quantisation_are_refused(tmp_path: Path) -> None:
    make_llama(tmp_path)
    for name in ("quantize_config.json", "quant_config.json"):
        (tmp_path / name).write_text('{"bits": 4}')
    with pytest.raises(ModelError, match=r"has quantize_config.json and quant_config.json"):
        open_path(tmp_path)


# ---- GGUF ----


def test_gguf_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    sizes = dict.fromkeys(["a.gguf", *(f"a-00001-of-0000{n}.gguf" for n in (2, 3))], 1)
    sizes |= {"a-00002-of-00002.gguf": 1}
    assert sorted(one.files for one in find_variants(sizes)) == [
        ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"),
        ("a-00001-of-00003.gguf",),
        ("a.gguf",),
    ]
    for name in sizes:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(
        ModelError, match=r"several GGUF models; .*of-00002.* .*of-00003.* .*a.gguf"
    ):
        find_model(ModelConfig(model=str(tmp_path)))


def test_tensor_in_two_parts_of_a_gguf_model_is_refused(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    make_gguf(tmp_path / "Tiny.gguf", reference, "qwen3", split_max_tensors=20)
    parts = sorted(tmp_path.glob("*.gguf"))
    names = [path.read_bytes() for path in parts]
    assert b"blk.0.attn_k.weight" in names[0]
    assert b"blk.2.attn_k.weight" in names[-1]
    parts[-1].write_bytes(names[-1].replace(b"blk.2.attn_k.weight", b"blk.0.attn_k.weight"))
    with pytest.raises(ModelError, match=f"'blk.0.attn_k.weight' is in .*{parts[0].name} and in"):
        open_path(parts[0])


# ---- chat templates ----


def jinja_beside_the_configuration(path: Path) -> None:
    set_template(path, "old")
    (path / "chat_template.jinja").write_text("new {{ tools }}\n")


def named_in_the_configuration(path: Path) -> None:
    default = "d {{ messages[0].content }}  \n{%- if tools %} t {% endif %}\n\n"
    tool_use = "\n {% for tool in tools %}\n {{ tool }}\n {% endfor %}\n  "
    named = {"tool_use": tool_use, "rag": "r", "default": default}
    set_template(path, [{"name": k, "template": v} for k, v in named.items()])


def folder_of_templates(path: Path) -> None:
    jinja_beside_the_configuration(path)
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("with {{ tools }}\n")


def set_template(path: Path, template: object) -> None:
    config = json.loads((path / "tokenizer_config.json").read_text())
    changed = json.dumps(config | {"chat_template": template, "eos_token": "</s>"})
    (path / "tokenizer_config.json").write_text(changed)


@pytest.mark.parametrize(
    "write", [jinja_beside_the_configuration, named_in_the_configuration, folder_of_templates]
)
def test_chat_template_is_that_of_transformers(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    make_llama(tmp_path)
    write(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = json.loads(open_path(tmp_path).tokenizer_files()["tokenizer_config.json"])
    for tools in (None, TOOLS):
        texts = (
            theirs.apply_chat_template(CHAT, tools=tools, chat_template=one, tokenize=False)
            for one in (None, ours["chat_template"])
        )
        expected, actual = texts
        assert actual == expected


def test_gguf_template_with_tools_is_the_one_for_them(tmp_path: Path) -> None:
    """As in llama.cpp."""
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    named = {"": "d {{ messages[0].content }}", ".tool_use": "with {{ tools | length }}"}
    extra = {f"tokenizer.chat_template{name}": text for name, text in named.items()}
    source = open_path(make_gguf(tmp_path / "x.gguf", reference, "qwen3", extra=extra))
    template = json.loads(source.tokenizer_files()["tokenizer_config.json"])["chat_template"]
    rendered = [Template(template).render(messages=CHAT, tools=one) for one in (None, TOOLS)]
    assert rendered == ["d w3", "with 1"]


# ---- adapters ----


def test_weights_of_an_adapter_are_those_that_peft_takes(tmp_path: Path) -> None:
    from peft.utils.save_and_load import load_peft_weights

    make_adapter(make_model(tmp_path / "base"), tmp_path / "a", r=2, target_modules=["q_proj"])
    torch.save({"base_model.model.x": torch.ones(1)}, tmp_path / "a" / "adapter_model.bin")
    shapes = {f"model.layers.{i}.self_attn.q_proj": (48, 48) for i in range(3)}
    adapter = open_adapter("a", tmp_path / "a", shapes=shapes)
    module = adapter.modules[0]
    expected = load_peft_weights(str(tmp_path / "a"))[f"base_model.model.{module}.lora_A.weight"]
    assert adapter.pair(module).a.tolist() == expected.tolist()


def test_what_is_left_out_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_llama(tmp_path)
    for name in ("adapter_config.json", INDEX, "pytorch_model.bin", "x.gguf"):
        (tmp_path / name).write_text("{}")
    with caplog.at_level(logging.INFO):
        open_path(tmp_path)
    assert "has adapter_config.json: that adapter is not applied" in caplog.text
    others = f"{INDEX}, pytorch_model.bin, x.gguf"
    assert f"the weights are those of model.safetensors, not of {others}" in caplog.text
