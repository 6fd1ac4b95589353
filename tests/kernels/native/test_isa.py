"""The instruction sets that we find on this machine, beside those that its kernel reports."""

import platform
import re
from pathlib import Path

import pytest

from signalbox_kernels import native
from signalbox_kernels.compilation import machine
from signalbox_kernels.native import Isa, library
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

AVX512 = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl"
CPUINFO_FLAGS = {
    "x86_64": {
        Isa.AVX2: "avx2 fma f16c",
        Isa.AVX2_VNNI: "avx2 fma f16c avx_vnni",
        Isa.AVX512: AVX512,
        Isa.AVX512_VNNI: f"{AVX512} avx512_vnni",
        Isa.AVX512_BF16: f"{AVX512} avx512_vnni avx512_bf16",
        Isa.AMX: f"{AVX512} avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8",
    },
    "aarch64": {
        Isa.NEON_DOTPROD: "asimddp",
        Isa.NEON_I8MM: "asimddp i8mm",
    },
}
HERE = CPUINFO_FLAGS.get(machine(), {})


def kernel_release() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


@pytest.mark.skipif(
    kernel_release() < (5, 16), reason="Linux names all of these, and gives tiles, since 5.16"
)
@pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.name)
def test_sets_are_those_whose_flags_the_kernel_shows(isa: Isa) -> None:
    text = Path("/proc/cpuinfo").read_text(encoding="ascii")
    shown = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)[0].split()
    assert bool(library().sb_machine_has(isa)) is (set(HERE[isa].split()) <= set(shown))


def test_portable_code_runs_anywhere_and_no_other_number_is_a_set() -> None:
    machine_has = library().sb_machine_has
    assert machine_has(Isa.PORTABLE)
    assert not [number for number in (-1, max(Isa) + 1, 99) if machine_has(number)]


def test_a_set_that_the_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_loaded", {})
    missing = [isa for isa in Isa if not library().sb_machine_has(isa)]
    for isa in missing:
        with pytest.raises(native.NativeUnavailable, match=f"^this machine has no {isa.name}$"):
            native.use(isa)
    assert Isa.PORTABLE not in missing
