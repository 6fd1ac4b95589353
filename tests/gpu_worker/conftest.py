"""Models that tests of the worker share, and do not change; and a disk with room."""

import shutil
from pathlib import Path

import pytest

from tests.gpu_worker.tiny_models import make_llama, make_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama, whose heads are too small for the native kernels."""
    path = tmp_path_factory.mktemp("tiny")
    make_model(path)
    return path


@pytest.fixture(scope="session")
def native_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama that the native kernels run."""
    path = tmp_path_factory.mktemp("native_tiny")
    make_llama(path)
    return path


@pytest.fixture(autouse=True)
def _disk_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk on which little is free, as any machine's may be, decides no test."""
    usage_of = shutil.disk_usage

    def empty(path: Path) -> object:
        usage = usage_of(path)
        return usage._replace(free=usage.total)

    monkeypatch.setattr(shutil, "disk_usage", empty)
