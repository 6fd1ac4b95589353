"""Tokens of adapters equal PEFT's, in batches that mix them."""

from pathlib import Path
from typing import Any

import pytest

from tests.gpu_worker.files.adapters.peft_adapters import KINDS, make_adapters, peft_tokens
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.tiny_models import make_model, reference_tokens
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow
NUM_TOKENS = 8
BASE = -1


class Adapted:
    """A tiny model, eight adapters, and what PEFT generates with each of them and with none."""

    def __init__(self, path: Path, family: str, **overrides: Any) -> None:
        self.path = path
        model = make_model(path, family, **overrides)
        self.lora = make_adapters(model, path / "adapters")
        lengths = (1, 5, 16, 17, 33, 40, 7, 9, 12, 3)
        self.prompts = make_prompts(*lengths)
        self.adapters = [*range(len(KINDS)), BASE, BASE]
        self.expected = [
            reference_tokens(model, prompt, NUM_TOKENS)
            if number == BASE
            else peft_tokens(model, path / f"adapters/a{number}", [prompt], NUM_TOKENS)[0]
            for prompt, number in zip(self.prompts, self.adapters, strict=True)
        ]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"), "llama3", head_dim=16)


@pytest.fixture(params=["native", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "native":
        skip_without_native_kernels()
    return str(request.param)


def test_eight_adapters_beside_the_base_model(adapted: Adapted, backend: str) -> None:
    runner = make_runner(adapted.path, cpu_backend=backend, lora=adapted.lora)
    for chunk in (1 << 30, 6):
        driver = Driver(runner=runner, chunk=chunk)
        tokens = driver.generate(adapted.prompts, num_tokens=NUM_TOKENS, adapters=adapted.adapters)
        assert tokens == adapted.expected


def test_each_adapter_changes_the_tokens(adapted: Adapted) -> None:
    base = reference = None
    skip_without_native_kernels()
    runner = make_runner(adapted.path, cpu_backend="native", lora=adapted.lora)
    prompt = make_prompts(40)
    base = Driver(runner=runner).generate(prompt, num_tokens=NUM_TOKENS)
    for number in range(len(KINDS)):
        reference = Driver(runner=runner).generate(prompt, num_tokens=NUM_TOKENS, adapters=[number])
        assert reference != base
