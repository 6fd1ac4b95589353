"""The table "Bounds" of THREAT_MODEL.md has each default as the option or constant has it.

A row names, in its third column, `--options` and constants such as `MAX_DEPTH` in
signalbox_router/limits/json_text.py, or a config's field such as `RouterConfig.max_prompt_bytes` in
signalbox_router/config.py. The second column has the value of each, in any of the units below.
"""

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from signalbox.settings.all_settings import SERVICES
from signalbox_rpc.settings.service_settings import flag_name
from tests.docs.blocks import ROOT

PAGE = ROOT / "THREAT_MODEL.md"
HEAD = "| what is bounded | default | option or constant | what a client and an operator see |"
UNITS = {
    "B": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
    "ms": 0.001, "s": 1, "min": 60, "h": 3600, "%": 0.01,
}  # fmt: skip
FILE = "signalbox_router/prompt/chat/conversation.py"
_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?:\s*([A-Za-z%]+))?")
_FLAG = re.compile(r"`(--[a-z0-9-]+)")
_CONSTANT = re.compile(r"`([A-Za-z_.]+)` in ((?:[a-z_/]+\.py(?:, | and )?)+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One bound as the table has it."""

    what: str
    default: str
    where: str
    seen: str

    def quantities(self) -> set[float]:
        """Returns the numbers of the default, as they stand there and in their units."""
        found: set[float] = set()
        for number, unit in _NUMBER.findall(self.default):
            value = float(number.replace(",", ""))
            found |= {value, value * UNITS.get(unit, 1)}
        return found

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yields the name and the value of everything that the row names."""
        for flag in _FLAG.findall(self.where):
            yield from ((flag, default) for default in defaults_of(flag))
        for name, files in _CONSTANT.findall(self.where):
            for file in re.split(r", | and ", files.removesuffix(" and ").removesuffix(", ")):
                yield f"{name} in {file}", constant(name, file)


def rows() -> list[Row]:
    lines = PAGE.read_text(encoding="utf-8").partition(HEAD)[2].splitlines()[2:]
    table = lines[: lines.index("")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    return [Row(*row) for row in cells]


def defaults_of(flag: str) -> list[Any]:
    """Returns the default of a flag in each command that has it; of one in MiB the bytes."""
    fields = [
        field
        for settings in SERVICES
        for name, field in settings.model_fields.items()
        if flag_name(name) == flag
    ]
    assert fields, f"no command has {flag}"
    return [_in_bytes(field) for field in fields]


def _in_bytes(field: FieldInfo) -> Any:
    is_in_mib = (field.description or "").startswith("MiB ")
    return field.default << 20 if is_in_mib and field.default is not None else field.default


def constant(name: str, file: str) -> Any:
    """Returns a module's constant, the value of a key of a table, or the default of a field."""
    found: Any = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        fields = found if isinstance(found, Mapping) else getattr(found, "model_fields", None)
        found = fields[part] if fields else getattr(found, part)
    return found.default if isinstance(found, FieldInfo) else found


def faults(row: Row) -> Iterator[str]:
    named = list(row.values())
    if not named:
        yield f"names no option and no constant of this form: {row.where!r}"
    for name, value in named:
        if value is None:
            if not row.default.startswith("none"):
                yield f"{name} has no default; the table says {row.default!r}"
        elif not any(math.isclose(value, one) for one in row.quantities()):
            yield f"{name} is {value}; the table says {row.default!r}"
    if not row.seen:
        yield "does not say what is seen"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.what)
def test_a_bound_is_what_the_table_says(row: Row) -> None:
    assert not list(faults(row))


def test_each_bound_stands_there_once() -> None:
    named = [row.what for row in rows()]
    assert len(named) == len(set(named)) and named


@pytest.mark.parametrize(
    "row",
    [
        Row("a", "129", f"`MAX_TOOLS` in {FILE}", "INVALID_ARGUMENT"),
        Row("a", "4,096", "`--max-live-requests` and `--drain-timeout`", "RESOURCE_EXHAUSTED"),
        Row("a", "128", f"MAX_TOOLS in {FILE}", "INVALID_ARGUMENT"),
        Row("a", "128", f"`MAX_TOOLS` in {FILE}", ""),
        Row("a", "1", "`--max-tenant-requests`", "RESOURCE_EXHAUSTED"),
    ],
    ids=["another number", "of one of two", "no code", "unseen", "off by default"],
)
def test_a_row_that_is_wrong_is_told(row: Row) -> None:
    assert list(faults(row))
