"""Checkpoints as they come: in one file or many, of the bare model, in PyTorch's own format."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from signalbox_kernels.torch.tensors import as_tensor
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.safetensors_file import stored_safetensors
from tests.gpu_worker.model_runners import (
    WEIGHTS,
    assert_greedy,
    make_prompts,
    make_runner,
    remove_files,
)
from tests.gpu_worker.tiny_models import make_model

pytestmark = pytest.mark.slow

SHAPE = {"hidden": 1024, "inner": 2816, "vocab": 1000, "layers": 4}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": SHAPE["vocab"],
    "hidden_size": SHAPE["hidden"],
    "intermediate_size": SHAPE["inner"],
    "num_hidden_layers": SHAPE["layers"],
    "num_attention_heads": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
}


def weight_shapes() -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = SHAPE["hidden"], SHAPE["inner"], SHAPE["vocab"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(SHAPE["layers"]):
        layer = {f"self_attn.{n}_proj": (hidden, hidden) for n in "qkvo"}
        layer |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
        layer |= {"mlp.down_proj": (hidden, inner)}
        norms = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {f"model.layers.{i}.{n}.weight": s for n, s in (layer | norms).items()}
    return shapes


def make_checkpoint(path: Path, *, num_shards: int) -> int:
    """Writes about 200 MB of weights; returns their bytes."""
    (path / "config.json").write_text(json.dumps(LLAMA))
    shapes = list(weight_shapes().items())
    weight_map: dict[str, str] = {}
    total = 0
    for shard in range(num_shards):
        tensors = {name: torch.full(shape, 0.01) for name, shape in shapes[shard::num_shards]}
        save_file(tensors, path / f"model-{shard}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"model-{shard}.safetensors")
        total += sum(tensor.nbytes for tensor in tensors.values())
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total


LOAD = """
import sys, torch
from signalbox_worker.config import ModelConfig
from signalbox_worker.models.layers import ParallelGroup, Placement
from signalbox_worker.runner.loading.model_source import open_model
from signalbox_worker.runner.loading.weight_loader import load_weights
from signalbox_worker.kv.cache.measured_device import HostDevice
from signalbox_worker.models import model_spec

cpu = torch.device("cpu")
source = open_model(ModelConfig(model=sys.argv[1]), lambda _: None)
spec = model_spec(source.config)
loaded = []

def load():
    with torch.inference_mode():
        placement = Placement(cpu, torch.float32)
        config = spec.read_config(source.config)
        loaded.append(spec.build(config, 128, placement, ParallelGroup()))
        load_weights(loaded[0], source, lambda _: None)

print(HostDevice().peak_growth(load))
"""


@pytest.mark.parametrize("num_shards", [1, 5])
def test_loading_takes_little_more_than_the_weights(num_shards: int, tmp_path: Path) -> None:
    total = make_checkpoint(tmp_path, num_shards=num_shards)
    # in a process of its own: what other tests have freed would hide, or add, some of it
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0.9 * total < int(done.stdout) < 1.3 * total


def rename(path: Path, prefix: str) -> None:
    """Takes the outer model's name off the weights, as in checkpoints of the bare model.

    GPT-2's have a mask in each layer besides.
    """
    for number, shard in enumerate(sorted(path.glob("*.safetensors"))):
        tensors = {k.removeprefix(prefix): v for k, v in load_file(shard).items()}
        if prefix == "transformer." and not number:
            tensors["h.0.attn.bias"] = torch.ones(1, 1, 4, 4).tril()
        save_file(tensors, shard)
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    names = content["weight_map"].items()
    content["weight_map"] = {name.removeprefix(prefix): shard for name, shard in names}
    index.write_text(json.dumps(content))


@pytest.mark.parametrize(("family", "prefix"), [("gpt2", "transformer."), ("opt", "model.")])
def test_checkpoint_of_the_bare_model_is_read(family: str, prefix: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family)
    rename(tmp_path, prefix)
    assert_greedy(make_runner(tmp_path), reference, make_prompts(12))


@pytest.mark.parametrize("is_zip", [True, False])
def test_checkpoint_in_torch_format_is_read(is_zip: bool, tmp_path: Path) -> None:
    reference = make_model(tmp_path, "opt")
    remove_files(tmp_path, *WEIGHTS)
    torch.save(
        reference.state_dict(),
        tmp_path / "pytorch_model.bin",
        _use_new_zipfile_serialization=is_zip,
    )
    assert_greedy(make_runner(tmp_path), reference, make_prompts(12))


def test_torch_file_with_code_in_it_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "opt")
    remove_files(tmp_path, *WEIGHTS)
    torch.save({"model.decoder.embed_tokens.weight": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin holds no plain tensors"):
        make_runner(tmp_path)


def test_reader_equals_the_library(tmp_path: Path) -> None:
    tensors = {
        "half": torch.randn(3, 5).half(),
        "bfloat": torch.randn(7).bfloat16(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "flags": torch.tensor([True, False, True]),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    read = dict(stored_safetensors(tmp_path / "x.safetensors"))
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        found = as_tensor(read[name].read())
        assert found.dtype is tensor.dtype
        torch.testing.assert_close(found, tensor, rtol=0, atol=0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x04\0\0\0\0\0\0\0null",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b'\x0c\0\0\0\0\0\0\0{"a":{"b":1}',
        b'\x0d\0\0\0\0\0\0\0{"a":{"b":1}}',
        b'\x3b\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[2],"data_offsets":[0, 8]}}    \0\0\0\0',
        b'\x3b\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[3],"data_offsets":[0, 4]}}    \0\0\0\0',
        b'\x3c\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[1,true],"data_offsets":[0, 4]}}\0\0\0\0',
    ],
)
def test_damaged_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"x\.safetensors cannot be read"):
        [tensor.read() for _, tensor in stored_safetensors(path)]
