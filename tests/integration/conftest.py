"""What several modules of these tests run on."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpu_worker.runner.model_runner import ModelRunner


@pytest.fixture(scope="session")
def runner() -> "ModelRunner":
    """The demo model in float32, loaded once; each worker that takes it makes its cache anew."""
    from tests.integration.demo_model.test_model_parity import make_runner  # imports torch

    return make_runner()
