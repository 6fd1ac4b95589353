"""Models that tests of the worker share, and do not change."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama, whose heads are too small for the native kernels."""
    from tests.gpu_worker.tiny_models import make_model  # it needs PyTorch; not all tests do

    path = tmp_path_factory.mktemp("tiny")
    make_model(path)
    return path


@pytest.fixture(scope="session")
def native_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama that the native kernels run."""
    from tests.gpu_worker.tiny_models import make_model

    path = tmp_path_factory.mktemp("native_tiny")
    make_model(path, head_dim=16)
    return path
