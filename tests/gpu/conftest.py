"""All tests of this folder need a CUDA device; `make test-gpu` runs them."""

import gc
from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def memory_of_earlier_tests_is_free() -> None:
    """PyTorch keeps what a test has freed: it would look like another user of the card."""
    gc.collect()
    torch.cuda.empty_cache()
