"""GGUF files of llama.cpp's converter, beside what transformers computed of the same values."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.runner.loading.gguf_model import GGUFSource
from signalbox_worker.runner.loading.model_source import weight_sizes
from signalbox_worker.runner.native import decoder_compiler
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import log_probabilities, make_runner
from tests.gpu_worker.runner.loading.converted_models import (
    FAMILIES,
    FOLDER,
    PROMPT,
    RECORDED,
)
from tests.gpu_worker.runner.loading.gguf_files import open_path, writing
from tests.gpu_worker.runner.loading.llama_cpp_logprobs import CONVERTED, PLACES
from tests.gpu_worker.runner.loading.llama_cpp_logprobs import RECORDED as OF_LLAMA_CPP
from tests.rounding import LOGITS

NATIVE = ("deepseek2-lite", "deepseek2-v2", "glm4", "glm4moe", "smollm3", *CONVERTED)
"""Files whose heads have whole vectors, and that native programs compute."""


def write_again(
    source: Path, path: Path, shapes: Mapping[str, tuple[int, ...]] = {}, **changes: Any
) -> Path:
    """Writes a file with other shapes of some tensors, and other fields of its architecture; None
    takes one out."""
    reader = gguf.GGUFReader(source)
    kind = reader.fields["general.architecture"].contents()
    left = {f"{kind}.{name.replace('__', '.')}": value for name, value in changes.items()}
    with writing(path, kind) as writer:
        for field in reader.fields.values():
            if field.name.startswith("GGUF.") or field.name == "general.architecture":
                continue
            value = left.pop(field.name, field.contents())
            sub = field.types[-1] if len(field.types) > 1 else None
            if value is not None:
                writer.add_key_value(field.name, value, field.types[0], sub_type=sub)
        for name, value in left.items():
            writer.add_key_value(name, value, gguf.GGUFValueType.UINT32)
        for tensor in reader.tensors:
            shape = shapes.get(tensor.name, tensor.data.shape)
            writer.add_tensor(tensor.name, np.resize(tensor.data, shape))
    return path


@pytest.mark.slow
@pytest.mark.compares(
    how="from GGUF of llama.cpp's converter",
    of=lambda name: FAMILIES[name][0],
    gguf=lambda name: GGUFSource(FOLDER / f"{name}.gguf").kind,
)
@pytest.mark.parametrize("name", FAMILIES)
def test_file_of_the_converter_gives_what_transformers_computed(name: str) -> None:
    path = FOLDER / f"{name}.gguf"
    assert weight_sizes(ModelConfig(model=str(path))) == open_path(path).sizes
    runner = make_runner(path, quantization="none", block_size=16)
    assert runner.model.numerics.kernels.startswith("native" if name in NATIVE else "torch")
    expected = torch.tensor(json.loads(RECORDED.read_text())[name])
    torch.testing.assert_close(log_probabilities(runner, PROMPT), expected, rtol=0, atol=LOGITS)
    whole = make_runner(FOLDER / f"{name}.gguf", quantization="none", block_size=16)
    tokens = Driver(runner=whole).generate([PROMPT, PROMPT[:9]], num_tokens=6)
    parts = make_runner(FOLDER / f"{name}.gguf", quantization="none", block_size=16)
    assert Driver(runner=parts, chunk=7).generate([PROMPT, PROMPT[:9]], num_tokens=6) == tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glm4moe", "deepseek2-v3"])
def test_layers_that_predict_further_tokens_are_left_out(name: str, tmp_path: Path) -> None:
    """The last layer is said to be one: what is left is a model of one layer."""
    path = write_again(FOLDER / f"{name}.gguf", tmp_path / "x.gguf", nextn_predict_layers=1)
    runner = make_runner(path, quantization="none", block_size=16, cpu_backend="torch")
    assert runner.executor.loaded.opened.shape.num_layers == 1
    assert torch.isfinite(log_probabilities(runner, PROMPT)).all()


def test_first_mixtures_give_widths_by_a_dense_layer(tmp_path: Path) -> None:
    widths = {"expert_feed_forward_length": None, "expert_shared_feed_forward_length": None}
    path = write_again(FOLDER / "qwen2moe.gguf", tmp_path / "x.gguf", **widths)
    config = open_path(path).config
    assert config["moe_intermediate_size"] == 24 // 2
    assert config["shared_expert_intermediate_size"] == 24


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deepseek2", {"attention__key_length_mla": None}, "before latent attention"),
        ("glm4moe", {"expert_gating_func": 1}, "expert_gating_func is not sigmoid's"),
        ("gpt-oss", {"rope__freq_base_swa": 5}, "GPT-OSS with a rope.freq_base_swa of its own"),
        ("gemma4", {"rope__dimension_count_swa": 4}, "rope.dimension_count_swa is not"),
        ("gemma4", {"feed_forward_length": [24]}, "no whole number for each of 4 layers"),
        ("qwen2moe", {"expert_group_count": 3}, "expert_group_count = 3, which is not supported"),
        ("lfm2", {"attention__head_count_kv": [0, 1, 2]}, "differs between layers that attend"),
        ("lfm2", {"attention__head_count_kv": [0, 1]}, "no whole number for each of 3 layers"),
        ("lfm2", {"attention__head_count_kv": [0, 0, 0]}, "by which no layer attends"),
        ("lfm2", {"attention__sliding_window": 9}, "sliding_window = 9, which is not supported"),
        ("lfm2moe", {"expert_gating_func": 1}, "expert_gating_func is not sigmoid's"),
        ("granitehybrid", {"attention__head_count_kv": [1, 1, 1]}, "layer_types all attend"),
        ("granitehybrid", {"ssm__time_step_rank": 2}, "has shape"),
        ("nemotron_h_moe", {"expert_gating_func": 1}, "expert_gating_func is not sigmoid's"),
        ("nemotron_h", {"attention__head_count_kv": [0, 0, 0, 0]}, "by which no layer attends"),
        ("qwen35", {"ssm__inner_size": 100}, "ssm.inner_size 100 is no multiple of its 6"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_again(FOLDER / f"{name}.gguf", tmp_path / "x.gguf", **changes)
    with pytest.raises(ModelError, match=message):
        make_runner(path)


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("deepseek2", "blk.0.attn_k_b.weight", (16, 8)),
        ("deepseek2", "blk.1.attn_v_b.weight", (2, 6, 16)),
        ("gpt-oss", "blk.0.ffn_down_exps.weight", (16,)),
        ("gpt-oss", "blk.0.ffn_up_exps.weight", (4, 16, 24)),
        ("gpt-oss", "blk.1.ffn_gate_exps.bias", (16,)),
        ("granitemoe-shared", "blk.0.ffn_up_shexp.weight", (24, 24)),
        ("glm4moe", "blk.1.ffn_up_exps.weight", (1 << 40, 0)),
    ],
)
def test_a_part_of_another_shape_is_named(
    name: str, tensor: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    path = write_again(FOLDER / f"{name}.gguf", tmp_path / "x.gguf", {tensor: shape})
    with pytest.raises(ModelError, match=re.escape(tensor)):
        open_path(path).stored()


def test_layers_of_granite_rotate_if_the_file_says_it(tmp_path: Path) -> None:
    source = FOLDER / "granitehybrid.gguf"
    path = write_again(source, tmp_path / "x.gguf", rope__scaling__finetuned=True)
    assert open_path(source).config["position_embedding_type"] == "nope"
    assert open_path(path).config["position_embedding_type"] == "rope"


@pytest.mark.slow
@pytest.mark.compares(
    how="from GGUF beside llama.cpp",
    of=lambda name: FAMILIES[name][0],
    gguf=lambda name: GGUFSource(FOLDER / f"{name}.gguf").kind,
)
@pytest.mark.parametrize("name", CONVERTED)
def test_file_gives_what_llama_cpp_computed(name: str) -> None:
    runner = make_runner(FOLDER / f"{name}.gguf", quantization="none", block_size=16)
    actual = log_probabilities(runner, PROMPT)[[place - 1 for place in PLACES]]
    expected = torch.tensor(json.loads(OF_LLAMA_CPP.read_text())[name])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-3)


def test_layers_that_rotate_nothing_have_no_table_of_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The converter gives Granite's hybrids a window of a million tokens."""
    lengths, table = list[int](), decoder_compiler.rotary_table
    monkeypatch.setattr(
        decoder_compiler, "rotary_table", lambda *args: lengths.append(args[-1]) or table(*args)
    )
    runner = make_runner(FOLDER / "granitehybrid.gguf", quantization="none", block_size=16)
    assert (runner.model.max_model_len, lengths) == (1 << 20, [1])
