"""A worker with a native program loads neither PyTorch nor transformers, nor needs them."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.native_kernels import skip_without_native_kernels
from tests.signalbox.stacks import serve as serving

pytestmark = pytest.mark.slow

skip_without_native_kernels()

PROMPTS = [[3, 4, 5, 6], [7, 8]]
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

ABSENT = """
import sys

class Absent:
    '''Finds no package of some names, as where they are not installed.'''

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors", "scipy", "sympy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
SERVE = (
    ABSENT
    + """
import json
from signalbox import LLM, SamplingParams
from signalbox.sampling_params import BeamSearchParams, StructuredOutputsParams

llm = LLM(sys.argv[1], load_format=sys.argv[3], device="cpu", dtype="float32", num_threads=1,
          swap_space=0.001, kv_cache_memory_bytes=1 << 22, max_num_seqs=8)
prompts = [{"prompt_token_ids": ids} for ids in json.loads(sys.argv[2])]
greedy = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
drawn = llm.generate(prompts, SamplingParams(
    temperature=1.0, top_p=0.9, seed=3, n=2, logprobs=2, prompt_logprobs=1, max_tokens=4,
    repetition_penalty=1.1, ignore_eos=True))
formed = llm.generate(prompts[:1], SamplingParams(
    temperature=0, max_tokens=8,
    structured_outputs=StructuredOutputsParams(regex="[a-c]{2}")))
beams = llm.beam_search(prompts, BeamSearchParams(beam_width=2, max_tokens=4))
loaded = {name.partition(".")[0] for name in sys.modules}
llm.close()
print(json.dumps({
    "greedy": [list(one.outputs[0].token_ids) for one in greedy],
    "branches": [len(one.outputs) for one in drawn],
    "logprobs": [len(one.outputs[0].logprobs) for one in drawn],
    "prompt_logprobs": [len(one.prompt_logprobs) for one in drawn],
    "beams": [len(one.sequences) for one in beams],
    "formed": formed[0].outputs[0].text,
    "loaded": sorted(loaded & {"torch", "transformers", "safetensors", "scipy", "sympy"}),
}))
"""
)


def run(path: Path, *, load_format: str = "auto") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SERVE, str(path), json.dumps(PROMPTS), load_format],
        capture_output=True,
        text=True,
        check=False,
    )


def serve(path: Path, *, load_format: str = "auto") -> dict[str, object]:
    done = run(path, load_format=load_format)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("form", ["safetensors", "GGUF"])
def test_a_model_is_served_without_pytorch(form: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")  # which makes the model
    from tests.gpu_worker.loading.gguf_files import make_gguf
    from tests.gpu_worker.tiny_models import make_model, reference_tokens

    path = tmp_path
    reference = make_model(path, "llama3", head_dim=16, num_hidden_layers=2)
    if form == "GGUF":
        path = make_gguf(tmp_path / "x.gguf", reference, "llama", kind_of=lambda _: "F32")
    found = serve(path)
    assert found["loaded"] == []
    assert found["branches"] == [2, 2]
    assert found["logprobs"] == [4, 4]
    assert found["prompt_logprobs"] == [4, 2]
    assert found["beams"] == [2, 2]
    assert found["greedy"] == [reference_tokens(reference, prompt, 6) for prompt in PROMPTS]


def test_made_up_weights_are_served_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = serve(tmp_path, load_format="dummy")  # it speaks bytes
    assert found["loaded"] == []
    assert re.fullmatch("[a-c]{2}", str(found["formed"]))
    assert serve(tmp_path, load_format="dummy") == found


@pytest.mark.system
def test_services_run_without_pytorch(tmp_path: Path) -> None:
    """`serve` and the router, scheduler and worker that it starts."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
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
    pytest.importorskip("torch")
    from tests.gpu_worker.tiny_models import make_model

    make_model(tmp_path, "gemma2")
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
    pytest.importorskip("torch")
    from tests.gpu_worker.model_runners import remove_files
    from tests.gpu_worker.tiny_models import make_model

    make_model(tmp_path, "llama3", head_dim=16)
    remove_files(tmp_path, remove, "*.index.json")
    (tmp_path / leave).write_bytes(b"it is not read")
    done = run(tmp_path)
    assert done.returncode != 0
    assert f"{expected}, and " in done.stderr
    assert "is not installed; pip install 'signalbox-serving[worker]'" in done.stderr
