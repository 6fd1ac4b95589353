"""What runs natively is decided from configurations, before any weight is read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from signalbox_kernels.native import NativeUnavailable
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.loading.opened_model import open_with_config
from signalbox_worker.runner.native import eligibility
from signalbox_worker.runner.native.eligibility import native_unsupported_reason
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


def reason(path: Path, **options: Any) -> str | None:
    def part(kind: type[Any], **others: Any) -> Any:
        return kind(**{k: v for k, v in options.items() if k in kind.model_fields} | others)

    model_config = part(ModelConfig, model=str(path))
    opened = open_with_config(model_config, lambda _: None)
    parallel = options.pop("parallel", ParallelConfig())
    return native_unsupported_reason(
        opened, model_config, part(CacheConfig), part(DeviceConfig), parallel
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"device": "cpu"}, None),
        ({"device": "cpu", "dtype": "bfloat16", "block_size": 32}, None),
        ({"device": "cpu", "cpu_backend": "native", "sampling_backend": "native"}, None),
        ({"device": "cpu", "cpu_backend": "torch"}, "cpu_backend is 'torch'"),
        ({"device": "cpu", "attention_backend": "torch"}, "attention_backend is 'torch'"),
        ({"device": "cpu", "sampling_backend": "torch"}, "sampling_backend is 'torch'"),
        ({"device": "cpu", "linear_backend": "triton"}, "linear_backend is 'triton'"),
        ({"device": "cpu", "dtype": "float16"}, "not in float16"),
        ({"device": "cpu", "block_size": 8}, "block size 8 is no multiple of 16"),
        ({"device": "cuda"}, "the device is cuda"),
    ],
    ids=str,
)
def test_options_decide(options: dict[str, Any], expected: str | None, native_tiny: Path) -> None:
    found = reason(native_tiny, **options)
    assert found is None if expected is None else expected in str(found)


def test_what_must_run_natively_and_cannot_is_refused(native_tiny: Path) -> None:
    with pytest.raises(ValueError, match="cpu_backend is 'native', but block size 8"):
        reason(native_tiny, device="cpu", cpu_backend="native", block_size=8)


@pytest.mark.parametrize("has_pytorch", [True, False])
def test_without_kernels_pytorch_computes_if_it_is_there(
    has_pytorch: bool, native_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> NoReturn:
        raise NativeUnavailable("no space left")

    monkeypatch.setattr(eligibility, "best_isa", fail)
    monkeypatch.setattr(eligibility, "find_spec", lambda _: has_pytorch or None)
    if has_pytorch:
        assert reason(native_tiny, device="cpu") == "no space left"
        return
    with pytest.raises(ModelError, match="no native CPU kernels: no space left; mend that, or pip"):
        reason(native_tiny, device="cpu")


def test_weights_are_not_read_where_nothing_depends_on_them(
    native_tiny: Path, tmp_path: Path
) -> None:
    config = json.loads((native_tiny / "config.json").read_text())
    untied = config | {"tie_word_embeddings": False}  # a tied head is compared with the table
    (tmp_path / "config.json").write_text(json.dumps(untied))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    assert reason(tmp_path, device="cpu") is None


def test_without_pytorch_the_device_is_the_cpu(
    native_tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(eligibility, "_DEVICE_FILES", (driver,))
    monkeypatch.setattr(eligibility, "find_spec", lambda _: None)
    assert reason(native_tiny) is None


def test_tensor_parallel_ranks_run_natively_on_one_host(native_tiny: Path) -> None:
    options: dict[str, Any] = {"device": "cpu"}
    ranks = ParallelConfig(tensor_parallel_size=2)
    assert reason(native_tiny, parallel=ranks, **options) is None
    apart = replace(ranks, collective_host="10.0.0.1")
    expected = "its tensor-parallel ranks are on several hosts"
    assert reason(native_tiny, parallel=apart, **options) == expected
    with pytest.raises(ValueError, match=f"cpu_backend is 'native', but {expected}; use 'auto'"):
        reason(native_tiny, parallel=apart, cpu_backend="native", **options)
    many = ParallelConfig(tensor_parallel_size=6)
    assert reason(native_tiny, parallel=many, **options) == (
        "intermediate_size 80 has fewer than 6 blocks"
    )


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="'auto', 'native' or 'torch'"):
        DeviceConfig(cpu_backend="fast")
