"""Files of made-up weights: of the model that they are named for, in llama-quantize's types."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from benchmarks import cpu_step
from benchmarks.comparison.bound import is_quantized, needs_of
from benchmarks.harness.random_checkpoint import _MODELS, config_of, shapes_of
from benchmarks.harness.random_gguf import FILE_TYPES, block_type, save_gguf
from signalbox_worker.files.checkpoints.gguf.config import GGUFConfig
from signalbox_worker.files.checkpoints.gguf.reader import read_gguf
from tests.native_kernels import skip_without_native_kernels

SMALL = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64}


def make_config(name: str) -> dict[str, Any]:
    num_layers = 3 if name == "lfm2-8b-a1b" else 2  # the first that attends and has experts
    config = (
        config_of(name, num_layers) | SMALL | {"num_attention_heads": 4, "num_key_value_heads": 2}
    )
    if "full_attention_interval" in config:
        config["full_attention_interval"] = 2
    if "moe_intermediate_size" in config:
        config["moe_intermediate_size"] = 256
    return config


@pytest.mark.parametrize("name", _MODELS)
def test_a_file_has_the_tensors_of_its_model(name: str, tmp_path: Path) -> None:
    config = make_config(name)
    path = save_gguf(tmp_path / "model.gguf", config, shapes_of(config), "Q4_K_M")
    read = GGUFConfig(read_gguf(path), path).config()
    assert shapes_of(read) == shapes_of(config)
    needs = needs_of(path, in_bytes=is_quantized(path))
    assert needs.in_bytes
    kept = config.get("linear_num_value_heads", 0) * 128 * 128
    assert needs.state_bytes == 4 * kept  # of one layer
    per_token = config.get("num_experts_per_tok", 0)
    experts = config.get("num_experts") or config.get("num_local_experts") or 1
    assert needs.expert_share == per_token / experts
    elements = sum(np.prod(shape) for shape in shapes_of(config).values() if len(shape) == 2)
    embedding = 0 if config["tie_word_embeddings"] else 512 * 256
    assert needs.weights + needs.expert_weights == elements - embedding


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_weights_of_each_type_are_small_and_differ(file_type: str, tmp_path: Path) -> None:
    config = make_config("qwen3-30b-a3b")
    path = save_gguf(tmp_path / "model.gguf", config, shapes_of(config), file_type)
    for tensor in GGUFReader(path).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        if "norm" in tensor.name:
            assert (values == 1).all()
        else:
            assert 0.01 < values.std() < 0.05
            assert abs(values.mean()) < 0.005
            assert len(np.unique(values.reshape(-1, values.shape[-1])[:, :8], axis=0)) > 1


@pytest.mark.parametrize(
    "name, shape, is_tied, kind",
    [
        ("token_embd.weight", (512, 2048), True, "Q6_K"),
        ("token_embd.weight", (512, 2048), False, "Q4_K"),
        ("output.weight", (512, 2048), False, "Q6_K"),
        ("blk.1.attn_v.weight", (512, 2048), True, "Q6_K"),
        ("blk.1.attn_qkv.weight", (512, 2048), True, "Q6_K"),
        ("blk.1.attn_gate.weight", (512, 2048), True, "Q4_K"),
        ("blk.1.ssm_conv1d.weight", (512, 4), True, "F32"),
        ("blk.2.attn_v.weight", (512, 2048), True, "Q4_K"),
        ("blk.4.ffn_down.weight", (512, 2048), True, "Q6_K"),
        ("blk.14.ffn_down_exps.weight", (8, 512, 2048), True, "Q6_K"),
        ("blk.14.ffn_up_exps.weight", (8, 512, 2048), True, "Q4_K"),
        ("blk.14.ffn_down.weight", (512, 2080), True, "Q8_0"),
        ("blk.14.attn_q.weight", (512, 2080), True, "Q5_0"),
        ("blk.14.ffn_gate_inp.weight", (64, 2048), True, "F32"),
        ("blk.14.shortconv.conv.weight", (2048, 3), True, "F32"),
        ("blk.14.shortconv.in_proj.weight", (6144, 2048), True, "Q4_K"),
    ],
)
def test_types_of_q4_k_m_are_those_of_llama_quantize(
    name: str, shape: tuple[int, ...], is_tied: bool, kind: str
) -> None:
    found = block_type(name, shape, "Q4_K_M", 16, is_tied=is_tied)
    assert found is GGMLQuantizationType[kind]


@pytest.mark.parametrize("file_type", ["Q4_K_M", "Q8_0", "BF16"])
def test_a_model_that_counts_draws_the_token_after_each(file_type: str, tmp_path: Path) -> None:
    skip_without_native_kernels()
    config = make_config("llama-3.2-1b") | {"tie_word_embeddings": False}
    path = tmp_path / "model.gguf"
    save_gguf(path, config, shapes_of(config), file_type, is_counting=True)
    options = Namespace(dtype="bfloat16", threads=1)
    runner = cpu_step.make_runner(options, str(path), "auto", "auto")
    case = cpu_step.Case("", num_seqs=4, num_new=16, context=64, draws=16)
    batch = cpu_step.make_batch(case, vocab_size=511)
    output = runner.execute(batch)
    assert output.token_ids.tolist() == (batch.token_ids + 1).tolist()
