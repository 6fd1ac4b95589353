"""Packed weights that an earlier start has kept are used as they are, or noticed and made again."""

import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signalbox_kernels import packed_file
from signalbox_worker.files.checkpoints import safetensors_file
from signalbox_worker.runner.native import packed_weights
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


def start(model: Path, folder: Path | str, **options: Any) -> list[list[int]]:
    """Starts a worker, and waits until it has kept what it packed; returns some tokens of it."""
    runner = make_runner(model, cpu_backend="native", packed_weights=str(folder), **options)
    for thread in threading.enumerate():
        if isinstance(thread, packed_weights._Keeping):
            thread.join()
    return Driver(runner=runner).generate(make_prompts(9, 30), num_tokens=8)


def kept(folder: Path) -> list[Path]:
    """The files of a folder, in which there is nothing else."""
    files = sorted(path for path in folder.iterdir() if path.name != ".lock")
    assert all(path.suffix == ".packed" and path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert folder.stat().st_mode & 0o777 == 0o700
    return files


@pytest.mark.parametrize("is_mapped", [True, False])
@pytest.mark.parametrize("form", [{}, {"quantization": "int8"}, {"dtype": "bfloat16"}])
def test_the_second_start_reads_no_tensor_and_gives_the_same_tokens(
    native_tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: dict[str, Any],
    is_mapped: bool,
) -> None:
    folder = tmp_path / "packed"
    expected = start(native_tiny, "off", **form)
    assert start(native_tiny, folder, **form) == expected
    (file,) = kept(folder)
    before = file.read_bytes()
    monkeypatch.setattr(packed_file, "_is_on_huge_pages", lambda memory: is_mapped)
    monkeypatch.setattr(safetensors_file, "read_pages", lambda *_: pytest.fail("it is read"))
    assert start(native_tiny, folder, **form) == expected
    assert kept(folder) == [file]
    assert file.read_bytes() == before


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def flip(place: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)

    return change


def put_another(file: Path) -> None:
    other = next(path for path in kept(file.parent) if path != file)
    shutil.copy(other, file)


DAMAGES = [cut, flip(100), flip(-300), flip(-1), put_another, lambda file: file.write_bytes(b"")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_again(
    native_tiny: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
) -> None:
    folder = tmp_path / "packed"
    start(native_tiny, folder, quantization="int8")
    others = kept(folder)
    expected = start(native_tiny, folder)
    (file,) = set(kept(folder)) - {*others}
    whole = file.read_bytes()
    damage(file)
    assert start(native_tiny, folder) == expected
    assert "is not used, and made again" in caplog.text
    assert file.read_bytes() == whole


def test_a_model_that_was_changed_is_packed_anew(native_tiny: Path, tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "packed"
    shutil.copytree(native_tiny, model)
    start(model, folder)
    (weights,) = model.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 0x40
    weights.write_bytes(content)
    assert start(model, folder) == start(model, "off")
    assert len(kept(folder)) == 2


def test_files_that_were_used_least_recently_leave(
    native_tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, forms = tmp_path / "packed", ["none", "int8", "int4"]
    files = list[Path]()
    for form in forms[:2]:
        start(native_tiny, folder, quantization=form)
        files += set(kept(folder)) - {*files}
    (folder / "x.part").touch()  # of a process that was killed
    for file, used in zip(files, (2, 1), strict=True):
        os.utime(file, (used, used))
    most = sum(file.stat().st_size for file in files)
    monkeypatch.setattr(packed_weights, "MOST_BYTES", most)
    start(native_tiny, folder, quantization="int4")
    assert files[1] not in kept(folder)
    assert len(kept(folder)) == 2
    assert sum(file.stat().st_size for file in kept(folder)) <= most


@pytest.mark.parametrize("fault", ["full", "others", "cut short"])
def test_a_folder_that_cannot_be_used_ends_no_start(
    native_tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    folder = tmp_path / "packed"
    folder.mkdir(mode=0o700)
    if fault == "full":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100, total=2000))
    elif fault == "others":
        folder.chmod(0o777)
    else:
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    assert start(native_tiny, folder) == start(native_tiny, "off")
    assert "packed weights are not kept" in caplog.text
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == []


def test_two_processes_that_write_at_once_leave_one_file(native_tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    expected = start(native_tiny, "off")
    runners = [
        make_runner(native_tiny, cpu_backend="native", packed_weights=str(folder)) for _ in range(2)
    ]
    assert len(runners) == 2
    assert start(native_tiny, folder) == expected
    assert len(kept(folder)) == 1


def test_small_and_made_up_weights_are_not_kept(
    native_tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "signalbox" / "packed"
    start(native_tiny, "auto")
    start(native_tiny, folder, load_format="dummy")
    assert kept(folder) == []
    monkeypatch.setattr(packed_weights, "_LEAST_BYTES", 1)
    start(native_tiny, "auto")
    (file,) = kept(folder)
    assert f"in {file}" in caplog.text  # where it is, and how large
