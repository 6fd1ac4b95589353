"""A model that does not fit is refused before a tensor is read, with what it needs and remedies."""

from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints import safetensors_file
from signalbox_worker.runner.native import memory_fit
from signalbox_worker.runner.native.tensor_share import TensorShare
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.runner.native.test_weights import make_config
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


@pytest.mark.parametrize(
    ("free", "options", "message"),
    [
        (
            0.5,
            {},
            r"it takes \d+ MiB of weights in its own .*; use --quantization int8, or raise",
        ),
        (0.1, {}, r"and 0 MiB of memory are free; raise the limit of memory .*, or divide"),
        (1.5, {"kv_cache_memory": 1.0}, r"and 1024 MiB of KV cache and swap.*; lower --kv-cache"),
        (0.25, {"quantization": "int8"}, r"weights in int8, .* free; use --quantization int4, or"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_read(
    native_tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: float,
    options: dict[str, Any],
    message: str,
) -> None:
    size = sum(file.stat().st_size for file in native_tiny.glob("*.safetensors"))
    monkeypatch.setattr(memory_fit, "available_ram", lambda: int(free * size))
    monkeypatch.setattr(safetensors_file, "read_pages", lambda *_: pytest.fail("it is read"))
    with pytest.raises(MemoryError, match=message):
        make_runner(native_tiny, cpu_backend="native", **options)


def test_ranks_and_stages_count_their_part() -> None:
    config = make_config(num_layers=4, num_kv_heads=2)
    stages = [StageLayers(2 * i, 2 * i + 2, 4) for i in range(2)]
    parts = [
        memory_fit._part(TensorShare(whole=config, rank=rank, size=2), stage)
        for stage in stages
        for rank in range(2)
    ]
    assert all(0.2 < part < 0.35 for part in parts)
    assert sum(parts) == pytest.approx(1, abs=0.05)  # norms lie on each rank
