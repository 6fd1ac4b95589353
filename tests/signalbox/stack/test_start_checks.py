"""Files that a stack cannot use are refused before any of its processes starts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack import local_stack, model_processes
from signalbox.stack.local_stack import LocalStack
from signalbox_router.limits.api_keys import KeyFileError
from signalbox_rpc.transport.tls import TlsError
from signalbox_worker.kv.shared.secret_files import SecretFileError
from tests.gpu_worker.kv.shared.redis_servers import write_secret
from tests.gpu_worker.tiny_models import SHAPE, make_llama, make_tokenizer


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the processes that a stack starts."""
    names: list[str] = []
    for module in (local_stack, model_processes):
        monkeypatch.setattr(module, "start", lambda name, *_, **__: names.append(name))
    return names


def make_stack(**flags: Any) -> LocalStack:
    return LocalStack(ServeSettings.model_validate({"grpc_port": 0, "http_port": 0, **flags}))


@pytest.mark.parametrize(
    ("flags", "error", "named"),
    [
        ({"chat_template": "no-such-template"}, ValueError, "no-such-template"),
        ({"api_keys": "nowhere.yaml"}, KeyFileError, "nowhere.yaml"),
        ({"tls_cert": "nowhere.pem", "tls_key": "nowhere.key"}, TlsError, "nowhere.pem"),
    ],
)
def test_a_file_that_cannot_be_used_starts_nothing(
    flags: dict[str, str], error: type[Exception], named: str, started: list[str]
) -> None:
    with pytest.raises(error, match=named):
        make_stack(simulate=True, **flags).launch()
    assert not started


def test_a_key_of_a_shared_store_that_is_too_short_starts_nothing(
    tmp_path: Path, started: list[str]
) -> None:
    key = write_secret(tmp_path / "key", b"short")
    stack = make_stack(model="nowhere", kv_store="redis://127.0.0.1", kv_store_key=key)
    with pytest.raises(SecretFileError, match="at least 32"):
        stack.launch()
    assert not started


@pytest.mark.parametrize("place", ["missing/kv", "file"])
def test_a_folder_for_blocks_that_cannot_be_one_starts_nothing(
    tmp_path: Path, started: list[str], place: str
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    (tmp_path / "file").touch()
    for flags in ({"kv_disk": tmp_path / place}, {"kv_store": f"file://{tmp_path / place}"}):
        with pytest.raises(ValueError, match="folder for KV blocks"):
            make_stack(model="nowhere", **flags).launch()
    assert not started


GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **SHAPE}
LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, **SHAPE}


@pytest.mark.parametrize(
    ("flags", "config", "absent", "extra"),
    [
        ({}, GPT2, "torch", "worker"),
        ({"dtype": "float16"}, LLAMA, "torch", "worker"),
        ({"device": "cuda"}, LLAMA, "torch", "worker"),
        ({"model_impl": "transformers"}, LLAMA, "transformers", "worker"),
        ({"attention_backend": "torch"}, LLAMA, "torch", "worker"),
        ({"attention_backend": "triton_plain"}, LLAMA, "triton", "gpu"),
        ({"sampling_backend": "triton"}, LLAMA, "triton", "gpu"),
        ({"model": "some-org/on-the-hub", "cpu_backend": "torch"}, None, "torch", "worker"),
        ({"load_format": "auto"}, LLAMA, "torch", "worker"),  # weights in PyTorch's own format
        ({"placement": "ray"}, LLAMA, "ray", "ray"),
    ],
)
def test_the_extra_that_settings_or_a_model_need_is_named_and_starts_nothing(
    flags: dict[str, str],
    config: dict[str, Any] | None,
    absent: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: list[str],
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "pytorch_model.bin").write_bytes(b"it is not read")
        make_tokenizer(tmp_path)
        flags = {"model": str(tmp_path), "load_format": "dummy"} | flags
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(
        ValueError, match=rf"{absent} is not installed.*signalbox-serving\[{extra}\]"
    ):
        make_stack(**flags).launch()
    assert not started


@pytest.mark.parametrize(
    ("fields", "flags", "problem"),
    [
        ({"hidden_size": 96}, {}, r"weight has shape .* where .*96"),
        ({"num_hidden_layers": 7}, {}, r"weights are missing, such as 'model\.layers\.[3-6]"),
        ({"rms_norm_eps": "small"}, {}, "config.json says rms_norm_eps"),
        ({}, {"max_model_len": 1 << 20}, "allows at most"),
        ({}, {"quantization": "gguf"}, "quantization is 'gguf'"),
        (None, {}, r"no tokenizer"),
    ],
)
def test_a_folder_that_no_worker_serves_starts_nothing(
    tmp_path: Path,
    started: list[str],
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, Any] | None,
    flags: dict[str, Any],
    problem: str,
) -> None:
    make_llama(tmp_path)
    make_stack(model=str(tmp_path), device="cpu").launch()
    assert "worker 0" in started
    started.clear()
    if fields is None:
        (tmp_path / "tokenizer.json").unlink()
    else:
        file = tmp_path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    with pytest.raises(ValueError, match=problem) as refusal:
        make_stack(model=str(tmp_path), device="cpu", **flags).launch()
    assert not started
    assert "\n" not in str(refusal.value)
    assert not caplog.records  # a worker logs what opening a model has to say


def test_weights_that_are_made_need_no_tokenizer(tmp_path: Path, started: list[str]) -> None:
    make_llama(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"vocab_size": 512}))
    make_stack(model=str(tmp_path), device="cpu", load_format="dummy").launch()
    assert "worker 0" in started


def test_a_family_that_nothing_computes_is_refused(tmp_path: Path) -> None:
    """Transformers tells, in a process of its own, after which this one has not imported it."""
    config = {"architectures": ["NoSuchForCausalLM"], "model_type": "no_such"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    script = (
        "import sys; from signalbox.stack.opening_check import check_opening\n"
        "from signalbox.settings.serve_settings import ServeSettings\n"
        f"settings = ServeSettings(model={str(tmp_path)!r}, load_format='dummy')\n"
        "try:\n    check_opening(settings)\n"
        "except ValueError as error:\n    print(error)\n"
        "sys.exit(bool({'torch', 'transformers'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "architecture not supported: NoSuchForCausalLM" in line
    assert "docs/reference/models.md" in line
