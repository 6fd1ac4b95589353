"""Skips test modules that need the native kernels where these cannot be loaded."""

import pytest

from signalbox_kernels import native


def skip_without_native_kernels() -> None:
    """Skips the test module that calls this while it is imported."""
    try:
        native.library()
    except native.NativeUnavailable:
        reason = "no C++ compiler, and no library that was built before"
        pytest.skip(reason, allow_module_level=True)
