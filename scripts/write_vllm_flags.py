"""Writes the table of docs/vllm_flags.md from `signalbox.settings.vllm_flags`.

python scripts/write_vllm_flags.py
"""

from pathlib import Path

from signalbox.settings import flag_name
from signalbox.settings.names import effect
from signalbox.settings.vllm_flags import SHORT_FLAGS, SWITCH, VLLM_FLAGS

PAGE = Path(__file__).parents[1] / "docs" / "vllm_flags.md"
HEAD = "| flag of `vllm serve` | here |\n|---|---|\n"


def table() -> str:
    """Returns the page's table, a row for each flag that is not simply ours too."""
    return HEAD + "".join(f"| {_flags(name)} | {effect(name)} |\n" for name in VLLM_FLAGS)


def _flags(name: str) -> str:
    long = flag_name("model" if name == "model_tag" else name)
    if VLLM_FLAGS[name].takes == SWITCH:
        long = f"--[no-]{long.removeprefix('--')}"
    short = [short for short, of in SHORT_FLAGS.items() if of == name]
    return ", ".join(f"`{flag}`" for flag in (long, *short))


def with_table(page: str) -> str:
    """Returns the page with its table as the code has it."""
    before, _, rest = page.partition(HEAD)
    after = rest[rest.index("\n\n") + 1 :] if "\n\n" in rest else ""
    return before + table() + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
