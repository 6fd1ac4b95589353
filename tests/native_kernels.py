"""The native kernels that tests can run here, if any."""

from pathlib import Path

import pytest

from signalbox_kernels import native
from signalbox_kernels.build import find_or_build
from signalbox_kernels.compilation import BuildError, flags_of_sets, machine
from signalbox_kernels.native import Isa


def skip_without_native_kernels() -> None:
    """Skips the test module that calls this while it is imported."""
    try:
        native.library()
    except native.NativeUnavailable:
        reason = "no C++ compiler, and no library that was built before"
        pytest.skip(reason, allow_module_level=True)


def available_isas() -> list[Isa]:
    """Builds the sets that the machine has, up to `isa_limit`; returns them, the lowest first.

    One that the compiler cannot build is left out. Raises NativeUnavailable.
    """
    has, limit = native.library().sb_machine_has, native.isa_limit()
    sets = [Isa[name.upper()] for name in flags_of_sets(machine())]
    sets = [isa for isa in sets if isa <= limit and has(isa)]
    try:
        found = find_or_build(*(isa.name.lower() for isa in sets))
    except BuildError as error:
        raise native.NativeUnavailable(str(error)) from None
    return [isa for isa in sets if isinstance(found[isa.name.lower()], Path)]
