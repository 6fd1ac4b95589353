"""A start with weights that were packed before reads no matrix of the model, of any form and part;
`runner.native.test_packed_weights` is about the file."""

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device import ram
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.files.checkpoints import safetensors_file
from signalbox_worker.files.checkpoints.file_pages import read_pages
from signalbox_worker.files.checkpoints.gguf import reader
from signalbox_worker.runner.native import memory_fit, packed_weights
from signalbox_worker.runner.ranks.rank_shard import load_shard
from signalbox_worker.runner.ranks.service.rank_messages import Start
from tests.gpu_worker.files.adapters.peft_adapters import make_adapters
from tests.gpu_worker.generation import groups_of, make_batch, make_sequence, num_row_blocks
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.quantised_models import SHAPE, in_gptq, save_quantised
from tests.gpu_worker.runner.loading.gguf_files import make_gguf
from tests.gpu_worker.tiny_models import LATENTS, UNLIKE_LAYERS, make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

SMALL = 2048
"""Bytes of scales, which are read before the matrices are opened, and of an adapter's matrices."""


def hidden_or_tokens(path: Path, folder: Path, parallel: ParallelConfig, **options: Any) -> bytes:
    model = ModelConfig(model=str(path), packed_weights=str(folder), **options)
    device = DeviceConfig(device="cpu", cpu_backend="native")
    runner = load_shard(Start(model=model, cache=CacheConfig(), parallel=parallel, device=device))
    for thread in threading.enumerate():
        if thread.name == "keep packed weights":
            thread.join()
    groups = groups_of(runner)
    runner.init_cache_engine(num_gpu_blocks=2 * num_row_blocks(groups), num_cpu_blocks=0)
    (prompt,) = make_prompts(9)
    work = [(make_sequence(prompt, [1]), 9)]
    batch = make_batch(work, block_size=16, groups=groups)
    output = runner.execute(batch)
    assert isinstance(output.hidden, np.ndarray) == (parallel.pipeline_parallel_size > 1)
    return (output.token_ids if output.hidden is None else output.hidden).tobytes()


@pytest.mark.parametrize(
    "form",
    [
        *("qwen2-moe", "granite-moe", "qwen3-moe of GGUF", "deepseek-v2", "gemma4"),
        *("lfm2-moe", "granite-hybrid", "qwen3.5", "nemotron-h-moe"),
        *("tied", "gptq", "stage", "lora"),
    ],
)
def test_no_matrix_is_read_again(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, parallel, options = tmp_path, ParallelConfig(), dict[str, Any]()
    family = "llama3" if form in ("tied", "gptq", "stage", "lora") else form.partition(" ")[0]
    if form == "gptq":
        config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
        save_quantised(path, family, partial(in_gptq, group_size=32, is_reordered=True), config)
    else:
        latents = LATENTS | {"num_key_value_heads": SHAPE["num_attention_heads"]}
        own = {
            "deepseek-v2": latents,
            "gemma4": UNLIKE_LAYERS,
            "granite-hybrid": {"mamba_d_head": 64},
        }.get(family, {})
        own = SHAPE | own | {"tie_word_embeddings": form == "tied"}
        reference = make_model(path, family, **own)
    if form == "stage":
        parallel = ParallelConfig(rank=1, pipeline_parallel_size=2)
    elif form == "lora":
        options["lora"] = make_adapters(reference, tmp_path / "adapters")
    elif form.endswith("GGUF"):
        path = tmp_path / "m.gguf"
        make_gguf(path, reference, "qwen3moe", kind_of=lambda _: "Q8_0")
    folder = tmp_path / "packed"
    expected = hidden_or_tokens(path, folder, parallel, **options)

    def of_vectors(file: FileIO, offset: int, num_bytes: int) -> Any:
        assert num_bytes <= SMALL or "adapters" in str(file.name), "a matrix is read"
        return read_pages(file, offset, num_bytes)

    for module in (safetensors_file, reader):
        monkeypatch.setattr(module, "read_pages", of_vectors)
    assert hidden_or_tokens(path, folder, parallel, **options) == expected
    assert len([*folder.glob("*.packed")]) == 1


@pytest.mark.parametrize("is_full", [False, True])
def test_a_mixture_that_memory_cannot_hold_stays_on_the_disk(
    is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    make_model(tmp_path, "qwen2-moe", **SHAPE)
    expected = hidden_or_tokens(tmp_path, Path("off"), ParallelConfig())
    monkeypatch.setattr(memory_fit, "available_ram", lambda: 1000)
    monkeypatch.setattr(ram, "_droppable_bytes", 0)  # as it was before, afterwards
    monkeypatch.setattr(packed_weights, "available_ram", lambda: 1000)
    folder = tmp_path / "packed"
    if is_full:
        free = SimpleNamespace(free=100, total=2000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
        with pytest.raises(MemoryError, match=f"not in {folder}: .* MiB do not fit"):
            hidden_or_tokens(tmp_path, folder, ParallelConfig())
        return
    for said in ("weights: packed into", "MiB mapped from"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert hidden_or_tokens(tmp_path, folder, ParallelConfig()) == expected
        assert said in caplog.text
        assert "do not fit in 0 MiB of free memory" in caplog.text
        assert [path.suffix for path in folder.iterdir() if path.name != ".lock"] == [".packed"]
    with pytest.raises(MemoryError, match="raise the limit of memory"):
        hidden_or_tokens(tmp_path, Path("off"), ParallelConfig())


def test_workers_that_wait_for_the_disk_map_what_the_first_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tmp_path, "qwen2-moe", **SHAPE)
    folder = tmp_path / "packed"
    expected = hidden_or_tokens(tmp_path, folder, ParallelConfig())
    (file,) = folder.glob("*.packed")
    inode = file.stat().st_ino
    file.rename(tmp_path / "of_another")
    monkeypatch.setattr(memory_fit, "available_ram", lambda: 1000)
    monkeypatch.setattr(ram, "_droppable_bytes", 0)  # as it was before, afterwards

    @contextmanager
    def only_builder(_: Path) -> Iterator[None]:
        (tmp_path / "of_another").rename(file)  # while this one waited
        yield

    monkeypatch.setattr(packed_weights, "only_builder", only_builder)
    with caplog.at_level(logging.INFO):
        assert hidden_or_tokens(tmp_path, folder, ParallelConfig()) == expected
    assert "weights: packed before" in caplog.text
    assert file.stat().st_ino == inode
