"""Copies of a checkpoint have one fingerprint; other weights and configurations have others."""

import shutil
from pathlib import Path

import pytest

from signalbox_worker.runner.loading.fingerprint import fingerprint
from signalbox_worker.runner.loading.hf_directory import DirectorySource
from tests.gpu_worker.tiny_models import make_model

NUM_BYTES = 5 << 20  # of which samples are a part


def write(path: Path, *, changed: range = range(0), num_bytes: int = NUM_BYTES) -> Path:
    data = bytearray(range(251)) * (num_bytes // 251 + 1)
    del data[num_bytes:]
    for i in changed:
        data[i] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "changed",
    [range(1), range(60_000, 60_001), range(NUM_BYTES // 3, NUM_BYTES), range(0, NUM_BYTES, 2)],
)
def test_other_bytes_give_another_fingerprint(tmp_path: Path, changed: range) -> None:
    first = fingerprint([write(tmp_path / "first")])
    assert fingerprint([write(tmp_path / "copy")]) == first
    assert fingerprint([write(tmp_path / "other", changed=changed)]) != first


def test_other_sizes_and_orders_give_another_fingerprint(tmp_path: Path) -> None:
    files = [write(tmp_path / "a"), write(tmp_path / "b", num_bytes=7)]
    found = {fingerprint(files), fingerprint(files[::-1]), fingerprint(files[:1])}
    found.add(fingerprint([write(tmp_path / "c", num_bytes=NUM_BYTES - 1), files[1]]))
    assert len(found) == 4


def test_a_copy_of_a_model_has_its_fingerprint_and_another_configuration_does_not(
    tmp_path: Path,
) -> None:
    make_model(path := tmp_path / "model")
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    first = fingerprint(DirectorySource(path, name="a").files())
    assert fingerprint(DirectorySource(copy, name="b").files()) == first
    config = copy / "config.json"
    config.write_text(config.read_text().replace("{", '{ "rope_theta": 7.0,', 1))
    assert fingerprint(DirectorySource(copy, name="b").files()) != first
