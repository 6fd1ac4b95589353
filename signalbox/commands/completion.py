"""`signalbox completion`: prints a script that completes commands and flags in a shell."""

import argparse
from collections.abc import Iterator
from typing import Any

from signalbox.settings.flags.parser import CommandParser

SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "PATH", "MODEL")
EXAMPLES = """\
examples
  source <(signalbox completion bash)                     # in ~/.bashrc
  signalbox completion zsh > ~/.zfunc/_signalbox          # with fpath+=~/.zfunc before compinit
  signalbox completion fish > ~/.config/fish/completions/signalbox.fish
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `signalbox completion` takes."""
    assert isinstance(parser, CommandParser)
    parser.set_defaults(parser=parser.root)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(options: dict[str, Any]) -> None:
    """Prints the script. It holds all names, so that nothing of ours runs while one types."""
    import shtab

    parser: CommandParser = options["parser"]
    for action in _fill(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, options["shell"]))


def _fill(parser: CommandParser) -> Iterator[argparse.Action]:
    """Adds the flags of each command; yields all, and hides those that its help does not list."""
    parser.fill_once()
    for group in parser._action_groups:
        for action in group._group_actions:
            if group.title in parser.unlisted:
                action.help = argparse.SUPPRESS
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from _fill(command)
            yield action
