"""Memory for adapters is reserved at the start, beside the KV cache; what exceeds it is refused."""

from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.model import Adapter
from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.config import NUM_LATER_ADAPTERS, ModelError
from signalbox_worker.kv.cache import capacity
from tests.gpu_worker.files.adapters.peft_adapters import KINDS, SEVEN, make_adapter, make_adapters
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow

RANK = 8


class Folder:
    """A model, the eight adapters, and three of rank 8 that change all modules."""

    def __init__(self, path: Path) -> None:
        self.path = path
        model = make_model(path, "llama3", head_dim=16)
        self.lora = make_adapters(model, path / "adapters")
        for seed in range(3):
            adapter = path / f"adapters/full{seed}"
            make_adapter(model, adapter, seed=seed, r=RANK, target_modules=SEVEN)

    def runner(self, backend: str, **options: Any) -> Any:
        return make_runner(self.path, cpu_backend=backend, **options)

    def open(self, runner: Any, name: str) -> OpenedAdapter:
        opened: OpenedAdapter = runner.open_adapter(name, str(self.path / "adapters" / name))
        return opened

    def load(self, runner: Any, name: str) -> Adapter:
        opened = self.open(runner, name)
        runner.add_adapter(opened)
        return opened.info


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("folder"))


@pytest.fixture(params=["native", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "native":
        skip_without_native_kernels()
    return str(request.param)


def held_bytes(opened: OpenedAdapter, backend: str) -> int:
    """Returns the bytes of the arrays, as far as they reach."""
    if backend == "torch":
        tensors = (tensor for _, one in opened.weights for tensor in (one.a, one.b))
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    arrays = (array for one in opened.weights if one is not None for array in (one.a, one.b))
    return sum(array.base.nbytes for array in arrays)


def test_what_an_adapter_takes_is_known_before_it_is_read(folder: Folder, backend: str) -> None:
    runner = folder.runner(backend, max_lora_rank=16, max_cpu_loras=8)
    for number in range(len(KINDS)):
        opened = folder.open(runner, f"a{number}")
        assert opened.num_bytes == held_bytes(opened, backend) > 0


def test_adapters_are_loaded_as_long_as_they_fit_into_the_reservation(
    folder: Folder, backend: str
) -> None:
    runner = folder.runner(backend, max_lora_rank=RANK, max_cpu_loras=2)
    reserved = runner.memory().adapters
    first = folder.load(runner, "full0")
    folder.load(runner, "full1")
    folder.load(runner, "full1")  # which is there
    refusal = r"adapter full2 takes 0\.\d MiB, and 0\.0 of the 0\.\d MiB .* raise --max-cpu-loras"
    with pytest.raises(ModelError, match=refusal):
        folder.open(runner, "full2")
    runner.remove_adapter(first)
    for name in ("a5", "a7"):  # smaller ones share what one of the largest had
        folder.load(runner, name)
    with pytest.raises(ModelError, match="unload another one"):
        folder.open(runner, "full2")
    assert runner.memory().adapters == reserved
    for one in runner.model.adapters:
        runner.remove_adapter(one)
    folder.load(runner, "full2")


def test_a_rank_that_is_too_large_and_a_worker_without_a_reservation_are_named(
    folder: Folder, backend: str
) -> None:
    runner = folder.runner(backend, max_lora_rank=4, max_cpu_loras=8)
    with pytest.raises(ModelError, match="rank 8, more than max_lora_rank, which is 4"):
        folder.open(runner, "full0")
    runner = folder.runner(backend, lora=folder.lora[0], max_lora_rank=16)
    with pytest.raises(ModelError, match=r"a2 takes .* 0\.0 of the .* raise --max-cpu-loras"):
        folder.open(runner, "a2")
    runner = folder.runner(backend, max_lora_rank=16)
    with pytest.raises(ModelError, match=r"no memory was reserved .* start with --adapter-dir"):
        folder.open(runner, "a2")


def test_adapters_of_the_start_fit_into_the_reservation_or_nothing_starts(
    folder: Folder, backend: str
) -> None:
    full = [f"full{i}={folder.path / f'adapters/full{i}'}" for i in range(3)]
    assert folder.runner(backend, lora=full).memory().adapters > 0
    with pytest.raises(ModelError, match=r"the adapter full2 takes .* raise --max-cpu-loras"):
        folder.runner(backend, lora=full, max_cpu_loras=2)


def test_the_kv_cache_is_sized_beside_the_whole_reservation(
    folder: Folder, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [f"full{i}={folder.path / f'adapters/full{i}'}" for i in range(3)]
    without = folder.runner(backend).profile()
    of_one = folder.runner(backend, lora=full[:1]).memory().adapters
    monkeypatch.setattr(capacity, "_measure_step", lambda *_, **__: (0, 1.0))
    free = 64 * of_one
    monkeypatch.setattr(capacity, "available_ram", lambda: free)
    runner = folder.runner(backend, lora=full, adapter_dir=folder.path, max_lora_rank=RANK)
    assert runner.memory().adapters == (3 + NUM_LATER_ADAPTERS) * of_one
    found = runner.profile()
    assert found.num_gpu_blocks == (free - NUM_LATER_ADAPTERS * of_one) // 8 // found.block_bytes
    assert without.block_bytes == found.block_bytes
