"""Writes the tables of docs/configuration.md from the declarations of the settings.

`python -m signalbox.settings.reference` rewrites the page below its marker; a test compares them.
"""

from pathlib import Path
from typing import get_args

from pydantic.fields import FieldInfo

from signalbox.flags import group_of
from signalbox.settings import (
    RouterSettings,
    SchedulerSettings,
    ServeSettings,
    Settings,
    WorkerSettings,
    flag_name,
)

MARKER = "<!-- The tables below are generated: make docs -->\n"
PAGE = Path("docs", "configuration.md")
SERVICES: dict[str, type[Settings]] = {
    "router": RouterSettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
    "serve": ServeSettings,
}


def tables() -> str:
    """Returns a Markdown table for each group of settings."""
    groups: dict[str, list[str]] = {}
    for name, (title, field) in _fields().items():
        owners = [service for service, known in SERVICES.items() if name in known.model_fields]
        groups.setdefault(title, []).append(_row(name, field, owners))
    head = "| flag | default | of | meaning |\n|---|---|---|---|\n"
    return "\n".join(
        f"## {title[:1].upper()}{title[1:]}\n\n{head}{''.join(rows)}"
        for title, rows in groups.items()
    )


def _fields() -> dict[str, tuple[str, FieldInfo]]:
    """Returns the group and the declaration of each setting, in order of first declaration."""
    found: dict[str, tuple[str, FieldInfo]] = {}
    for service in SERVICES.values():
        for name, field in service.model_fields.items():
            found.setdefault(name, (group_of(name, service), field))
    return found


def _row(name: str, field: FieldInfo, owners: list[str]) -> str:
    text = " ".join((field.description or "").split()).replace("|", "\\|")
    of = "each" if len(owners) == len(SERVICES) else ", ".join(owners)
    flag = "MODEL" if name == "model" else flag_name(name)
    return f"| `{flag}` | {_default(field)} | {of} | {_choices(field)}{text} |\n"


def _default(field: FieldInfo) -> str:
    return "" if field.default in (None, "") else f"`{str(field.default).lower()}`"


def _choices(field: FieldInfo) -> str:
    names = [f"`{one}`" for one in get_args(field.annotation) if isinstance(one, str)]
    return f"{', '.join(names)}: " if names else ""


def page(text: str) -> str:
    """Returns the page with new tables. Raises ValueError if it has no marker."""
    before, marker, _ = text.partition(MARKER)
    if not marker:
        raise ValueError(f"{PAGE} has no line {MARKER.strip()!r}")
    return f"{before}{MARKER}\n{tables()}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
