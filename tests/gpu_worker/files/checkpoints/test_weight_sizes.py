"""The size of weights that heads of files tell, against what a runner holds in the end."""

from typing import Any

import pytest

from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.files.checkpoints.weight_sizes import OWN_TYPES
from signalbox_worker.runner.loading.model_source import weight_sizes
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service.runner_factory import make_runner

pytestmark = pytest.mark.slow

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.model
@pytest.mark.parametrize("form", [OWN_TYPES, "gguf", "int8", "int4"])
def test_a_model_takes_what_was_told_and_a_little_more(form: str) -> None:
    """More, because matrices are packed in whole tiles, and norms stay floats."""
    flags = {"dtype": "float32"} if form == OWN_TYPES else {"quantization": form}
    config = ModelConfig(model=MODEL, **flags)
    sizes = weight_sizes(config)
    assert sizes is not None
    runner: Any = make_runner(
        RunnerConfig(model=config, cache=CacheConfig(), device=DeviceConfig(device="cpu"))
    )
    assert sizes.bytes_in(form) <= runner.memory().weights <= 1.25 * sizes.bytes_in(form)
