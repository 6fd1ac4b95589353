"""`signalbox config`: shows the settings of a command with their sources, and checks a file."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from signalbox.settings.effective import HIDDEN, Effective, effective, faults
from signalbox.settings.flags.service_flags import add_flags as add_service_flags
from signalbox.settings.services import SERVICES
from signalbox.settings.sources import SettingsError
from signalbox.stack.service_runner import service
from signalbox_rpc.settings.service_settings import Settings

EXAMPLES = """\
  signalbox config show serve --max-num-seqs 8     what serve would run with, and from where
  signalbox config check signalbox.yaml            faults, for serve or the services one by one
  signalbox config check signalbox.yaml worker     faults for a worker
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `signalbox config` takes."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show",
        help="show the settings of a command, each with its source",
        description="Show each setting of a command with its source: flag, environment, file or"
        " default. The output is YAML that --config takes; in it, defaults and secrets are"
        " comments.",
    )
    commands = show.add_subparsers(dest="of", metavar="COMMAND", required=True)
    for name in SERVICES:
        text = f"Shows the settings of {name}, which takes the same flags."
        command = commands.add_parser(name, help=f"those of {name}", description=text)
        add_service_flags(command, service(name)[0])
    check = actions.add_parser(
        "check",
        help="check a file for --config",
        description="Check a file for --config: unknown settings, values out of range, and"
        " settings that contradict each other. Without COMMAND, the file is for serve, or for"
        " router, scheduler and worker.",
    )
    check.add_argument("file", metavar="FILE", help="YAML file with settings")
    check.add_argument(
        "of",
        metavar="COMMAND",
        nargs="?",
        choices=SERVICES,
        help="command that the file is for (default: serve, or the services one by one)",
    )
    check.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Shows settings, or checks a file. Raises SettingsError for a fault."""
    action, of = options.pop("action"), options.pop("of")
    settings_class = None if of is None else service(of)[0]
    if action == "check":
        _check(options["file"], settings_class)
    elif settings_class is not None:
        _show(settings_class, options)


def _show(settings_class: type[Settings], flags: dict[str, Any]) -> None:
    notices: list[str] = []
    rows = effective(settings_class, flags, notices)
    for notice in notices:
        print(f"# {notice}")
    for one in rows:
        print(f"{_line(one)}  # {one.source}")


def _line(one: Effective) -> str:
    """Returns a line of YAML, which is a comment for a secret or a default."""
    if one.is_hidden:
        return f"# {one.name}: {HIDDEN}"
    comment = "# " if one.source == "default" else ""
    shown = str(one.value) if isinstance(one.value, Path) else one.value
    value = yaml.safe_dump([shown], default_flow_style=True, width=1 << 16).strip()[1:-1]
    return f"{comment}{one.name}: {value}"


def _check(file: str, settings_class: type[Settings] | None) -> None:
    found = faults(file, settings_class)
    for fault in found:
        print(fault)
    if found:
        raise SettingsError(f"{file} has {len(found)} {'fault' if len(found) == 1 else 'faults'}")
    print(f"{file} is right")
