"""Writes the tables of docs/reference/ (configuration, foreign flags) from their declarations.

`python -m signalbox.settings.flags.reference` rewrites each page below its marker; a test compares
them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic.fields import FieldInfo

from signalbox.settings.flag_kinds import SWITCH, ForeignFlag
from signalbox.settings.flags.service_flags import choices_of, groups_of, spelling_of
from signalbox.settings.foreign_flags import other_names
from signalbox.settings.llama_cpp_flags import LLAMA_CPP_FLAGS
from signalbox.settings.serve_settings import ServeCommandSettings
from signalbox.settings.setting_names import effect
from signalbox.settings.vllm_flags import VLLM_FLAGS
from signalbox_router.config import RouterSettings
from signalbox_rpc.settings.service_settings import Settings, flag_name
from signalbox_scheduler.config import SchedulerSettings
from signalbox_worker.service.worker_settings import WorkerSettings

MARKER = "<!-- The tables below are generated: make docs -->\n"
SERVICES: dict[str, type[Settings]] = {
    "router": RouterSettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
    "serve": ServeCommandSettings,
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
        groups = groups_of(service)
        for name, field in service.model_fields.items():
            found.setdefault(name, (groups[name], field))
    return found


def _row(name: str, field: FieldInfo, owners: list[str]) -> str:
    text = " ".join((field.description or "").split()).replace("|", "\\|")
    of = "each" if len(owners) == len(SERVICES) else ", ".join(owners)
    flag = "MODEL" if name == "model" else flag_name(name)
    return f"| `{flag}` | {_default(field)} | {of} | {_choices(field)}{text} |\n"


def _default(field: FieldInfo) -> str:
    return "" if field.default in (None, "") else f"`{str(field.default).lower()}`"


def _choices(field: FieldInfo) -> str:
    names = [f"`{one}`" for one in choices_of(field)]
    return f"{', '.join(names)}: " if names else ""


def foreign_table(program: str, flags: Mapping[str, ForeignFlag]) -> str:
    """Returns a Markdown table with a row for each flag of another server that is not also a
    setting's name."""
    rows = (f"| {_spellings(name, flag)} | {effect(name)} |\n" for name, flag in flags.items())
    return f"| flag of {program} | here |\n|---|---|\n" + "".join(rows)


def _spellings(name: str, flag: ForeignFlag) -> str:
    long = spelling_of(name)
    if flag.takes == SWITCH:
        long = f"--[no-]{long.removeprefix('--')}"
    return ", ".join(f"`{one}`" for one in (long, *other_names(name), *flag.off))


PAGES: Mapping[Path, Callable[[], str]] = {
    Path("docs", "reference", "configuration.md"): tables,
    Path("docs", "reference", "vllm_flags.md"): partial(foreign_table, "`vllm serve`", VLLM_FLAGS),
    Path("docs", "reference", "llama_cpp_flags.md"): partial(
        foreign_table, "`llama-server` or `ollama run`", LLAMA_CPP_FLAGS
    ),
}
"""Generator of each page's tables, by its path from the root of the repository."""


def page(path: Path, text: str) -> str:
    """Returns the text of a page with new tables. Raises ValueError if it has no marker."""
    before, marker, _ = text.partition(MARKER)
    if not marker:
        raise ValueError(f"{path} has no line {MARKER.strip()!r}")
    return f"{before}{MARKER}\n{PAGES[path]()}"


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path, path.read_text(encoding="utf-8")), encoding="utf-8")
