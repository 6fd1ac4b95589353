"""Adapters that come and go between steps: slots are used again, and tokens stay PEFT's."""

import pytest

from signalbox_contract.model import Adapter
from signalbox_worker.device.parallel_config import ParallelConfig
from tests.gpu_worker.files.adapters.peft_adapters import KINDS
from tests.gpu_worker.files.adapters.test_tokens import BASE, NUM_TOKENS, Adapted
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"), "llama3", head_dim=16)


@pytest.mark.parametrize(
    ("backend", "tp", "pp"),
    [("native", 1, 1), ("torch", 1, 1), ("native", 1, 3), ("native", 2, 1), ("torch", 2, 2)],
)
def test_a_slot_that_is_free_is_used_again(
    adapted: Adapted, backend: str, tp: int, pp: int, request: pytest.FixtureRequest
) -> None:
    if backend == "native":
        skip_without_native_kernels()
    folder = adapted.path / "adapters"
    start = make_start(
        adapted.path, ParallelConfig(), cpu_backend=backend, max_lora_rank=16, max_cpu_loras=8
    )
    runner = load_threads(with_sizes(start, tp, pp))
    request.addfinalizer(runner.close)
    runner.init_cache_engine(num_gpu_blocks=64, num_cpu_blocks=0)

    def load(number: int) -> Adapter:
        opened = runner.open_adapter(f"a{number}", str(folder / f"a{number}"))
        runner.add_adapter(opened)
        runner.add_adapter(opened)  # which changes nothing
        return opened.info

    def check(*loaded: Adapter) -> None:
        """Asserts that each of these, and the base model, draw what they must."""
        slots = {f"a{i}": BASE for i in range(len(KINDS))}
        slots |= {one.name: runner.adapter_slots[one.sha256] for one in loaded}
        chosen = [
            (prompt, BASE if number == BASE else slots[f"a{number}"], expected)
            for prompt, number, expected in zip(
                adapted.prompts, adapted.adapters, adapted.expected, strict=True
            )
            if number == BASE or f"a{number}" in {one.name for one in loaded}
        ]
        prompts, numbers, expected = zip(*chosen, strict=True)
        driver = Driver(runner=runner, chunk=6)  # within what ranks have memory for
        tokens = driver.generate(list(prompts), num_tokens=NUM_TOKENS, adapters=list(numbers))
        assert tokens == list(expected)
        assert {one.name for one in runner.model.adapters} == {one.name for one in loaded}

    check()
    first = [load(number) for number in range(3)]
    check(*first)
    runner.remove_adapter(first[1])
    check(first[0], first[2])
    later = [load(number) for number in range(3, 8)]
    assert runner.adapter_slots[later[0].sha256] == 1
    check(first[0], first[2], *later)
    for one in (first[0], first[2], *later):
        runner.remove_adapter(one)
    assert runner.adapter_slots == {}
    check()
