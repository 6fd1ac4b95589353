"""Writes docs/reference/cli.md: each command of `signalbox` with its arguments and flags.

`make docs` runs it; a test compares. docs/reference/configuration.md has the services' options.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from signalbox import cli
from signalbox.settings.flags.parser import CommandParser

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
HEAD = """\
# The commands

`signalbox COMMAND --help` prints the same. The options of `serve`, `demo`, `run`, `router`,
`scheduler` and `worker` are in [configuration](configuration.md), and `config show COMMAND` takes
those of its command; `run-batch` takes those of `serve`, too. Flags that several commands take are
in the last table. Each command also takes `--debug`, which shows tracebacks instead of one-line
errors.

The exit status is 0 on success, 1 on an error, 2 if the command line is wrong, and 130 after
Ctrl-C.
"""
SERVICES = ("serve", "demo", "run", "router", "scheduler", "worker")
BESIDE_SERVICES = ("run-batch",)
"""Commands with flags of their own and those of serve, which have no default here."""
COMMON = {"--help", "--debug"}
ESCAPED = "\\|"
"""A bar within a cell of a table."""


def text() -> str:
    """Returns the page: each command with its own flags, then those that several commands have."""
    commands = dict(_commands("signalbox", cli.make_parser()))
    users: dict[str, list[str]] = {}
    for prog, command in commands.items():
        for row in _rows(prog, command):
            users.setdefault(row, []).append(prog.removeprefix("signalbox "))
    shared = {row: ", ".join(names) for row, names in users.items() if len(names) > 1}
    parts = [HEAD]
    for prog, command in commands.items():
        parts.append(f"## {prog}\n\n{command.description or ''}\n")
        if own := [row for row in _rows(prog, command) if row not in shared]:
            parts.append(f"| argument or flag | meaning |\n|---|---|\n{''.join(own)}")
    parts.append("## Flags of several commands\n")
    for names in dict.fromkeys(shared.values()):
        rows = [row for row, of in shared.items() if of == names]
        parts.append(f"### {names}\n\n| flag | meaning |\n|---|---|\n{''.join(rows)}")
    return "\n".join(parts)


def _commands(
    prog: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yields the parser of each command, without those that take a service's options."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                if prog == "signalbox config show":
                    continue
                if isinstance(command, CommandParser):
                    command.fill_once()
                yield f"{prog} {name}", command
                yield from _commands(f"{prog} {name}", command)


def _rows(prog: str, command: argparse.ArgumentParser) -> list[str]:
    name = prog.removeprefix("signalbox ")
    if name in SERVICES:
        return []
    listed = [action for action in command._actions if _is_listed(action)]
    if name in BESIDE_SERVICES:
        listed = [action for action in listed if action.default != argparse.SUPPRESS]
    return [_row(action) for action in listed]


def _is_listed(action: argparse.Action) -> bool:
    is_common = bool(COMMON.intersection(action.option_strings))
    is_group = isinstance(action, argparse._SubParsersAction)
    return not is_common and not is_group and action.help != argparse.SUPPRESS


def _row(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    value = "" if action.nargs == 0 else f" {metavar}"
    names = ", ".join(action.option_strings)
    shown = f"{names}{'' if isinstance(action, argparse.BooleanOptionalAction) else value}"
    meaning = " ".join((action.help or "").split()) % {**vars(action), "prog": "signalbox"}
    cells = (f"`{shown if names else metavar}`", meaning)
    return f"| {' | '.join(cell.replace('|', ESCAPED) for cell in cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
