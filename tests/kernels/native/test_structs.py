"""The structs that Python passes have the fields of the C headers, in their order."""

import ctypes
import re
from pathlib import Path

import pytest

import signalbox_kernels
from signalbox_kernels import structs
from signalbox_kernels.filters import DTYPES
from signalbox_kernels.matching import SbMatcher

SOURCES = Path(signalbox_kernels.__file__).parent / "csrc"
HEADERS = "\n".join(
    (SOURCES / name).read_text(encoding="utf-8")
    for name in ("program/api.h", "sampling/sampling_api.h", "matching/matcher.h")
)
STRUCTS = {
    name: one
    for name, one in {**vars(structs), "SbMatcher": SbMatcher}.items()
    if isinstance(one, type) and issubclass(one, ctypes.Structure)
}
C_TYPES = {"int32_t": ctypes.c_int32, "float": ctypes.c_float, **STRUCTS}
C_ARRAYS = {"float": "float32", "int64_t": "int64"}


def declared(struct: str) -> list[tuple[str, str]]:
    """Returns the type and the name of each field in the header."""
    body = re.search(rf"^struct {struct} {{\n(.*?)^}};", HEADERS, re.MULTILINE | re.DOTALL)
    assert body is not None
    return re.findall(r"^  (?:const )?(\w+\*?) (\w+);", body[1], re.MULTILINE)


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_is_that_of_the_header(name: str) -> None:
    expected = [
        (field, ctypes.c_void_p if kind.endswith("*") else C_TYPES[kind])
        for kind, field in declared(name)
    ]
    assert [(field, kind) for field, kind, *_ in STRUCTS[name]._fields_] == expected


def test_filters_have_the_types_of_the_header() -> None:
    kinds = {field: C_ARRAYS.get(kind.rstrip("*")) for kind, field in declared("SbDraws")}
    assert {name: kinds[name] for name in DTYPES._fields} == DTYPES._asdict()
