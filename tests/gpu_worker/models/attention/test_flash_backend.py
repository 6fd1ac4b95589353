"""flash-attn and FlashInfer, by stand-ins with their signatures; no GPU has run any of this."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from signalbox_worker.batch.input_transfer import InputPacker, PinnedBuffers
from signalbox_worker.config import AUTO_BLOCK_SIZE
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.models.attention import (
    AttentionShape,
    choose_attention_backend,
    installed_backends,
    selection,
)
from signalbox_worker.models.attention import flash_kernels as flash
from signalbox_worker.models.attention.backend_check import fault_of
from signalbox_worker.models.attention.flash_backend import FlashAttention
from signalbox_worker.models.attention.flash_kernels import PACKAGED_KERNELS, FlashKernel
from signalbox_worker.models.attention.trial_batches import Span, consecutive_blocks, trial_batch
from signalbox_worker.runner.executors.graph_inputs import GraphBuffers, GraphSize
from tests.gpu_worker.device.trials.trials_here import run_here
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.models.attention.device_attention import make_shape
from tests.gpu_worker.models.attention.flash_modules import (
    make_flash_attn_2,
    make_flash_attn_3,
    make_flash_attn_4,
    make_flashinfer,
)
from tests.gpu_worker.tiny_models import make_model

CPU = torch.device("cpu")
STAND_INS = {
    "flash_attn_2": make_flash_attn_2,
    "flash_attn_3": make_flash_attn_3,
    "flash_attn_4": make_flash_attn_4,
    "flashinfer": make_flashinfer,
}
NAMES = sorted(STAND_INS)


def install(name: str, monkeypatch: pytest.MonkeyPatch) -> FlashKernel:
    """Puts a stand-in where the package would be, and says that the CPU is a GPU that it takes."""
    kernel = next(kernel for kernel in PACKAGED_KERNELS if kernel.name == name)
    parent, _, child = kernel.module.partition(".")
    module = STAND_INS[name]()
    module.__spec__ = sys.__spec__  # find_spec asks for one
    if child:
        package = ModuleType(parent)
        package.__path__ = []
        package.__spec__ = sys.__spec__
        monkeypatch.setitem(sys.modules, parent, package)
    monkeypatch.setitem(sys.modules, kernel.module, module)
    generation = 9 if 9 in kernel.generations else kernel.generations[0]
    monkeypatch.setattr(flash, "generation_of", lambda device: generation)
    monkeypatch.setattr(selection, "verdicts_of", run_here)
    return kernel


def make_flash_shape(**changes: Any) -> AttentionShape:
    fitting: dict[str, Any] = {"dtype": torch.bfloat16, "block_size": AUTO_BLOCK_SIZE}
    sizes = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "sliding_windows": (None, 9)}
    return make_shape(**sizes | {"scale": 0.125, "soft_cap": 20.0} | fitting | changes)


def fitting_shape(kernel: FlashKernel, **changes: Any) -> AttentionShape:
    """Returns a shape with what the kernel takes of windows and caps."""
    shape = make_flash_shape(block_size=kernel.block_sizes[0], **changes)
    if not kernel.has_windows:
        shape = replace(shape, sliding_windows=(None, None))
    if kernel.head_sizes:
        shape = replace(shape, head_size=kernel.head_sizes[0])
    return shape if kernel.caps_scores else replace(shape, soft_cap=None)


@pytest.mark.parametrize("name", NAMES)
def test_windows_caps_chunks_and_decodes_are_torchs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = install(name, monkeypatch)
    shape = fitting_shape(kernel)
    assert fault_of(lambda each: FlashAttention(each, kernel), shape) is None
    uncapped = replace(shape, soft_cap=None, num_heads=2)
    assert fault_of(lambda each: FlashAttention(each, kernel), uncapped) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_model_says_what_it_says_with_torch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = install(name, monkeypatch)
    make_model(tmp_path, "llama3", head_dim=128 if kernel.head_sizes else 8)
    prompts = make_prompts(3, 26)
    texts = []
    for backend in (name, "torch"):
        runner = make_runner(
            tmp_path,
            dtype="bfloat16",
            attention_backend=backend,
            cpu_backend="torch",
            kv_cache_memory=1 / 256,
            num_gpu_blocks=12,
        )
        block_size = runner.profile().block_size
        runner.init_cache_engine(num_gpu_blocks=12, num_cpu_blocks=1)
        driver = Driver(runner=runner, chunk=20, block_size=block_size)
        texts.append(driver.generate(prompts, num_tokens=3))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "graph", [None, GraphSize(64, 64, is_decode=False)], ids=["eager", "graph"]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_made_on_the_device_is_the_same(
    name: str, graph: GraphSize | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By shapes alone: bounds may be wide, results may not differ."""
    kernel = install(name, monkeypatch)
    shape = fitting_shape(kernel)
    backend = FlashAttention(shape, kernel)
    backend.bind(torch.zeros(20, backend.block_bytes, dtype=torch.uint8))
    blocks = consecutive_blocks((37, 5), shape.block_size)
    spans = map(Span, (0, 4), (37, 5), blocks)  # a prompt and a decode
    batch = trial_batch(shape, list(spans))
    pinned, num_tokens = PinnedBuffers(CPU, streams_of(CPU).compute), len(batch.token_ids)
    if graph is None:
        inputs = InputPacker(CPU, pinned).batch(batch)
    else:
        buffers = GraphBuffers(sizes=[graph], max_blocks=3, device=CPU, pinned=pinned)
        buffers.fill(batch, graph, np.arange(2))
        inputs = buffers.inputs(graph)
    query = torch.randn(len(inputs.token_ids), 4, shape.head_size).bfloat16()
    key_value = torch.randn(len(inputs.token_ids), 2, 2, shape.head_size).bfloat16()
    planned = backend.plan(batch)(query[:num_tokens], key_value[:num_tokens], layer=1)
    on_device = backend.plan_on_device(inputs)(query, key_value, layer=1)
    assert torch.equal(planned, on_device[:num_tokens])


def test_the_newest_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "flash_attn" not in installed_backends()
    install("flash_attn_2", monkeypatch)
    assert {"flash_attn", "flash_attn_2", "torch"} <= set(installed_backends())
    assert "flash_attn_3" not in installed_backends()
    chosen = choose_attention_backend("flash_attn", make_flash_shape())
    assert (chosen.name, chosen.block_size) == ("flash_attn_2", 256)
    install("flash_attn_3", monkeypatch)
    chosen = choose_attention_backend("flash_attn", make_flash_shape())
    assert (chosen.name, chosen.block_size) == ("flash_attn_3", 16)


def test_version_4_alone_is_no_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    installed = [kernel.name for kernel in PACKAGED_KERNELS if kernel.is_installed()]
    sys.modules.pop("flash_attn")  # which the search for its part has imported
    assert installed == ["flash_attn_4"]


def test_a_version_that_is_broken_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fault is then in the log, instead of nothing."""
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise ImportError('undefined symbol')")
    monkeypatch.syspath_prepend(tmp_path)
    assert {"flash_attn_2", "flash_attn_4"} <= set(installed_backends())
    monkeypatch.setattr(selection, "candidates", lambda device: ("flash_attn_2", "torch"))
    monkeypatch.setattr(selection, "verdicts_of", run_here)
    monkeypatch.setattr(flash, "generation_of", lambda device: 9)
    with pytest.raises(ValueError, match="'flash_attn_2' does not work here"):
        choose_attention_backend("auto", make_flash_shape())


@pytest.mark.parametrize(
    ("generation", "order"),
    [
        (8, ("flash_attn_4", "triton", "triton_plain", "flash_attn_2", "torch")),
        (9, ("flash_attn_3", "triton", "triton_pdl", "triton_plain", "flash_attn_2", "torch")),
        (
            10,
            (
                *("flash_attn_4", "flashinfer", "triton", "triton_pdl", "triton_plain"),
                *("flash_attn_2", "torch"),
            ),
        ),
        (12, ("flash_attn_4", "triton", "triton_pdl", "triton_plain", "flash_attn_2", "torch")),
    ],
)
def test_auto_tries_what_is_fast_on_the_gpu(
    generation: int, order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "generation_of", lambda device: generation)
    assert selection.candidates(torch.device("cuda")) == order
    assert selection.candidates(torch.device("cpu")) == ("torch",)


def test_auto_takes_it_where_the_model_fits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install("flash_attn_3", monkeypatch)
    monkeypatch.setattr(selection, "candidates", lambda device: ("flash_attn_3", "torch"))
    with caplog.at_level("INFO"):
        assert choose_attention_backend("auto", make_flash_shape()).name == "flash_attn_3"
        assert (
            choose_attention_backend("auto", make_flash_shape(dtype=torch.float32)).name == "torch"
        )
        assert choose_attention_backend("auto", make_flash_shape(block_size=64)).name == "torch"
    assert "auto is flash_attn_3, in blocks of 16 tokens" in caplog.text
    assert "takes 16 bits, not torch.float32" in caplog.text
    assert "takes blocks of 16, 32 tokens, not 64" in caplog.text


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("flash_attn_3", {"head_size": 60}, "up to 256 elements in multiples of 8, not 60"),
        (
            "flash_attn_2",
            {"block_size": 16},
            "takes blocks of 256 tokens, not 16; leave block_size",
        ),
        ("flash_attn_4", {"dtype": torch.float32}, "takes 16 bits, not torch.float32; use dtype b"),
        (
            "flashinfer",
            {"soft_cap": None},
            "takes heads of 128 or 256 elements, not 64",
        ),
        ("flashinfer", {"soft_cap": None, "head_size": 128}, "takes no sliding windows, as this"),
        ("flashinfer", {"head_size": 128}, "'flashinfer' caps no scores, as this model needs"),
    ],
)
def test_what_a_version_does_not_take_is_refused(
    name: str, changes: dict[str, object], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(name, monkeypatch)
    with pytest.raises(ValueError, match=problem):
        choose_attention_backend(name, make_flash_shape(**changes))


def test_a_device_or_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'flash_attn' can be used: .*'flash_attn_3' is not"):
        choose_attention_backend("flash_attn", make_flash_shape())
    install("flash_attn_3", monkeypatch)
    monkeypatch.setattr(flash, "generation_of", lambda device: 8)
    with pytest.raises(ValueError, match="does not page on compute capability 8; use 'auto'"):
        choose_attention_backend("flash_attn_3", make_flash_shape())
    monkeypatch.setattr(flash, "generation_of", lambda device: None)
    with pytest.raises(ValueError, match="does not page on no CUDA device; use 'auto'"):
        choose_attention_backend("flash_attn_3", make_flash_shape())
