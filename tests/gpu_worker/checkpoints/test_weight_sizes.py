"""The size of weights that heads of files tell, against what a runner holds in the end."""

from typing import Any

import pytest

from gpu_worker.checkpoints.gguf_names import FAMILIES, MISTRAL, MIXTRAL
from gpu_worker.checkpoints.weight_sizes import (
    NATIVE_ARCHITECTURES,
    NATIVE_KINDS,
    OWN_TYPES,
    RUNNABLE_TYPES,
)
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig
from gpu_worker.loading.model_source import weight_sizes
from gpu_worker.models.registry import architectures, model_spec
from gpu_worker.runner_factory import make_runner
from signalbox_kernels.storage import QUANTISED

pytestmark = pytest.mark.slow

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_the_types_that_run_are_those_of_the_kernels() -> None:
    assert {*RUNNABLE_TYPES} == {int(kind) for kind in QUANTISED}


def test_the_families_that_run_natively_are_those_of_the_llama_decoder() -> None:
    native = {name for name in architectures() if model_spec({"architectures": [name]}).is_llama}
    assert native == NATIVE_ARCHITECTURES
    kinds = {kind for kind, family in FAMILIES.items() if family.architecture in native}
    assert kinds == NATIVE_KINDS
    assert MISTRAL.architecture in native and MIXTRAL.architecture not in native


@pytest.mark.model
@pytest.mark.parametrize("form", [OWN_TYPES, "gguf", "int8", "int4"])
def test_a_model_takes_what_was_told_and_a_little_more(form: str) -> None:
    """More, because matrices are packed in whole tiles, and norms stay floats."""
    flags = {"dtype": "float32"} if form == OWN_TYPES else {"quantization": form}
    config = ModelConfig(model=MODEL, **flags)  # type: ignore[arg-type]
    sizes = weight_sizes(config)
    assert sizes is not None
    runner: Any = make_runner(config, CacheConfig(), device_config=DeviceConfig(device="cpu"))
    assert sizes.bytes_in(form) <= runner.memory().weights <= 1.25 * sizes.bytes_in(form)
