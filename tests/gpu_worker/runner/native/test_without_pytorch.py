"""A worker with a native program loads neither PyTorch nor transformers, nor needs them."""

import json
import os
import re
import urllib.request
from pathlib import Path

import pytest

from tests.gpu_worker.model_runners import remove_files
from tests.gpu_worker.runner.native.llm_process import HIDE_PYTORCH, embed, run, serve
from tests.gpu_worker.tiny_models import SHAPE, make_llama, make_tokenizer
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow

skip_without_native_kernels()

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}


def test_made_up_weights_are_served_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = serve(tmp_path, load_format="dummy")  # it speaks bytes
    assert found["loaded"] == []
    assert re.fullmatch("[a-c]{2}", str(found["formed"]))
    assert serve(tmp_path, load_format="dummy") == found


def test_vectors_of_embedding_gemma_are_made_without_pytorch(tmp_path: Path) -> None:
    gemma = CONFIG | {
        "architectures": ["Gemma3TextModel"],
        "use_bidirectional_attention": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    (tmp_path / "config.json").write_text(json.dumps(gemma))
    found = embed(tmp_path)
    assert found["loaded"] == []
    assert found["sizes"] == [32, 32]
    assert found["are_finite"]


@pytest.mark.system
def test_services_run_without_pytorch(tmp_path: Path) -> None:
    """`serve` and the router, scheduler and worker that it starts."""
    from tests.signalbox.stacks import serve as serving  # needs psutil; the other tests do not

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "sitecustomize.py").write_text(HIDE_PYTORCH)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    flags = ["--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "0.01"]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with serving(tmp_path / "log", str(tmp_path), *flags, variables=variables) as stack:
        body = {"prompt": "abc", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"{stack.http_url()}/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            usage = json.load(answer)["usage"]
        children = stack.children()
        mapped = {entry.path for child in children.values() for entry in child.memory_maps()}
    assert usage["completion_tokens"] == 4
    assert {"router", "scheduler", "worker"} <= children.keys()
    assert any("signalbox_common" in path for path in mapped)
    assert not [path for path in mapped if "torch" in path]


def test_a_model_that_needs_pytorch_names_the_extra(tmp_path: Path) -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **SHAPE}
    (tmp_path / "config.json").write_text(json.dumps(config))
    make_tokenizer(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")  # it is not read
    done = run(tmp_path)
    assert done.returncode != 0
    assert "torch is not installed; pip install 'signalbox-serving[worker]'" in done.stderr


@pytest.mark.parametrize(
    ("remove", "leave", "expected"),
    [
        ("*.safetensors", "pytorch_model.bin", "pytorch_model.bin is in PyTorch's own format"),
        ("tokenizer.json", "vocab.json", "has no tokenizer.json, which transformers can make"),
    ],
)
def test_a_file_that_needs_pytorch_names_the_extra(
    remove: str, leave: str, expected: str, tmp_path: Path
) -> None:
    make_llama(tmp_path)
    remove_files(tmp_path, remove)
    (tmp_path / leave).write_bytes(b"it is not read")
    done = run(tmp_path)
    assert done.returncode != 0
    assert f"{expected}, and " in done.stderr
    assert "is not installed; pip install 'signalbox-serving[worker]'" in done.stderr


def test_a_setting_that_needs_pytorch_is_named_beside_the_extra(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = run(tmp_path, load_format="dummy", dtype="float16")
    assert done.returncode != 0
    assert "not natively (it computes in float32 and bfloat16, not in float16)" in done.stderr
    assert "torch is not installed; pip install 'signalbox-serving[worker]'" in done.stderr


@pytest.mark.parametrize(
    ("form", "expected"), [("int8", "takes a native program, but"), ("fp8", "takes a CUDA device")]
)
def test_what_pytorch_would_refuse_does_not_ask_for_it(
    form: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = run(tmp_path, load_format="dummy", dtype="float16", quantization=form)
    assert done.returncode != 0
    assert expected in done.stderr
    assert "not installed" not in done.stderr
