"""What all tests share: where Triton's kernels run, and the examples of property tests."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

# Property tests draw the same examples in each run, so that a change breaks them and chance does
# not. HYPOTHESIS_PROFILE=default draws new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Triton decides when it is first imported. TRITON_INTERPRET=0 runs the same tests on a GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def triton_device() -> Iterator[str]:
    """The device whose ops are Triton's during a test: a CPU, interpreted, or CUDA."""
    from signalbox_kernels import triton

    if not triton.is_installed():
        pytest.skip("Triton is not installed")
    device = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
    triton.register_ops(device)
    yield device
    triton.unregister_ops(device)
