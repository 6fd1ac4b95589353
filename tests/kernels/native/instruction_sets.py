"""The instruction sets that tests run: those of this machine, and AVX2-VNNI in another encoding.

Importing this skips the module where there is no library.
"""

import ctypes
import sys
from pathlib import Path

import pytest

from signalbox_kernels import build, native
from signalbox_kernels.compilation import Toolchain, machine
from signalbox_kernels.native import Isa, NativeUnavailable, library
from tests.native_kernels import available_isas


def add_avx2_vnni() -> list[Isa]:
    """Loads AVX2_VNNI as AVX-512 encodes it, where the machine can run only that; returns it.

    It is built into the user's cache, once for each state of the sources.
    """
    machine_has = library().sb_machine_has
    has_other = machine_has(Isa.AVX512_VNNI) and native.isa_limit() >= Isa.AVX2_VNNI
    if machine_has(Isa.AVX2_VNNI) or not has_other:
        return []
    folder, part = build.cache_folder() / "evex", "avx2_vnni"
    compiler = (sys.executable, str(Path(__file__).with_name("evex_compiler.py")))
    with build.only_builder(folder):
        path = folder / build.file_name(part, machine())
        if not path.is_file():
            toolchain = Toolchain(command=(*compiler, build.compiler()), machine=machine())
            result = build.build([part], folder, toolchain)[part]
            if isinstance(result, build.BuildError):
                raise result
    native.add_kernels(Isa.AVX2_VNNI, ctypes.CDLL(str(path)))
    return [Isa.AVX2_VNNI]


try:
    ISAS = available_isas() + add_avx2_vnni()
except (NativeUnavailable, build.BuildError):
    pytest.skip("no C++ compiler, and no library that was built before", allow_module_level=True)
