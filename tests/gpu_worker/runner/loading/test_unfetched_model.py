"""Heads of files on the hub: how much of them is asked for, and what a hub may answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from signalbox_rpc.lifetime import private_folder
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.reader import read_gguf
from signalbox_worker.files.hub.download import find_on_hub
from signalbox_worker.files.hub.hub_model import HubModel
from signalbox_worker.runner.loading.unfetched_model import with_holes
from tests.fake_hub import FakeHub, point_at, running_hub, write_gguf
from tests.gpu_worker.tiny_models import make_llama

NAME = "some-org/Some-Model"
TOKENS = [f"token {number}" for number in range(20_000)]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub(tmp_path / "served") as served:
        point_at(monkeypatch, served.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield served


def found() -> HubModel:
    model = find_on_hub(NAME, None)
    assert isinstance(model, HubModel)
    return model


def test_a_long_head_is_read_in_parts_and_all_else_is_a_hole(hub: FakeHub) -> None:
    file, size = hub.repository() / "x-Q4_0.gguf", 8 << 20
    write_gguf(file, size, tokens=TOKENS)
    with with_holes(found()) as path:
        content, whole = read_gguf(path), read_gguf(file)
        assert content.fields == whole.fields
        assert [one.offset for one in content.tensors.values()] == [
            one.offset for one in whole.tensors.values()
        ]
        assert path.stat().st_size == size
        assert path.stat().st_blocks * 512 < size / 4
    ranges = [one.range for one in hub.asked if one.range]
    assert len(ranges) > 1
    assert hub.num_sent <= 1 << 20 < size
    assert not path.exists()
    assert not private_folder._open


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no ranges", "cannot fetch some-org/Some-Model from the hub: the hub sends no part of"),
        ("long head", f"{NAME}/model.safetensors cannot be read .* no sound length"),
        ("too long a head", "the head of model.safetensors has more than 100000000 bytes"),
        ("no safetensors", f"{NAME}/model.safetensors cannot be read"),
    ],
)
def test_a_hub_or_a_file_that_is_not_sound_is_told_in_one_line(
    hub: FakeHub, fault: str, reason: str
) -> None:
    from signalbox_worker.files.checkpoints.safetensors_file import stored_safetensors

    make_llama(hub.repository())
    file = hub.repository() / "model.safetensors"
    hub.ignores_ranges = fault == "no ranges"
    if fault == "long head":
        file.write_bytes((1 << 40).to_bytes(8, "little") + bytes(100))
    elif fault == "no safetensors":
        file.write_bytes(bytes(100))
    model = found()
    if fault == "too long a head":
        file.write_bytes((1 << 40).to_bytes(8, "little") + bytes(100_000))
        model.sizes["model.safetensors"] = 1 << 41  # type: ignore[index]
    with pytest.raises(ModelError, match=reason) as error, with_holes(model) as path:
        list(stored_safetensors(path / "model.safetensors"))
    assert "\n" not in str(error.value)
    assert not private_folder._open
