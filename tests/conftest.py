"""What all tests share: threads, where Triton's kernels run, examples, parallel runs."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
SYSTEM = (
    *("benchmarks/", "chaos/", "hostile/"),
    *("signalbox/commands/cached_models/", "signalbox/commands/", "signalbox/stack/"),
)
"""Folders whose tests start services or commands as processes, or benchmarks of them."""
MAX_ID_LENGTH = 200

# Property tests draw the same examples in each run, so that a change breaks them and chance does
# not. HYPOTHESIS_PROFILE=default draws new ones.
hypothesis.settings.register_profile("default", deadline=None)  # a busy machine takes its time
hypothesis.settings.register_profile(
    "repeatable", hypothesis.settings.get_profile("default"), derandomize=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What a shell sets for services and clients of its user; a test sets what it needs.
_OF_THE_USER = ("AWS_", "OTEL_", "SIGNALBOX_", "VLLM_")
_OF_THE_RUN = ("SIGNALBOX_ISA", "SIGNALBOX_TEST_")
for _name in [*os.environ]:
    if _name.startswith(_OF_THE_USER) and not _name.startswith(_OF_THE_RUN):
        del os.environ[_name]

# Services of tests are on this machine; of a proxy, only what fetches packages has need.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join([os.environ.get(_name, ""), "localhost", "127.0.0.1", "::1"])

# The tests' tensors are small, and two processes of tests share the processors with the services
# that they start. Threads that spin, or wait for each other in each operation, take twice as long.
# OpenMP decides when PyTorch is first imported; a test of several threads asks for them by number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Triton decides when it is first imported. TRITON_INTERPRET=0 runs the same tests on a GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell starts its background jobs with SIGINT ignored, and so would be what the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Cuts the names of long values: some have megabytes, and go with each report of a run."""
    if isinstance(val, str | bytes) and len(val) > MAX_ID_LENGTH:
        return f"{val[:MAX_ID_LENGTH]!r}..."
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks tests of the whole system, and keeps those of a module in one process of a run.

    Tests that name a group are kept together by it.
    """
    for item in items:
        module = item.path.relative_to(TESTS).with_suffix("").as_posix()
        if module.startswith(SYSTEM) or item.get_closest_marker("model"):
            item.add_marker(pytest.mark.system)
        if hasattr(config, "workerinput") and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(module))


@pytest.fixture
def triton_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The device whose ops are Triton's during a test: a CPU, interpreted, or CUDA."""
    from signalbox_kernels import triton

    if not triton.is_installed():
        pytest.skip("Triton is not installed")
    device = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
    if device == "cpu":
        from triton.runtime import interpreter

        from tests.triton_interpreter import exact_e4m3

        monkeypatch.setattr(interpreter, "_convert_float", exact_e4m3(interpreter._convert_float))
    triton.register_ops(device)
    yield device
    triton.unregister_ops(device)
