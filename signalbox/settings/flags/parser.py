"""Parses command lines: full flag names, help in groups, and no values in error messages.

A value that is not understood may be a misplaced secret, so messages repeat only names.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from signalbox.settings.spelling import did_you_mean

_NAME = re.compile(r"--[\w-]+|-[A-Za-z]{1,5}(?=\.[A-Za-z])")
_SHORT_NAME = re.compile(r"-[A-Za-z]{1,5}")
_VALUE_FOR_NONE = re.compile(r"ignored explicit argument .*", re.DOTALL)
"""Reason of argparse, with the value, for a flag that takes none."""
ALL = "all"
"""Word of --help that shows every group, as in vLLM."""
LIST_GROUPS = "listgroup"
"""Word of --help that lists the titles of the groups, as in vLLM."""
_ADDRESSES = ("--router", "--scheduler", "--address")
"""Flags with the address that a command calls."""
_ADDRESSES_ELSEWHERE = {"--url", "--base-url", "--endpoint", "--host", "--port", "-u"}

_MOST_NAMED = 4
"""Commands with a flag that an error message names."""


class HelpFormatter(argparse.HelpFormatter):
    """Keeps the names of a flag within the terminal, however many there are."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = super()._format_action_invocation(action)
        indent = " " * (self._current_indent + self._indent_increment)
        return textwrap.fill(
            names, self._width, initial_indent=" " * self._current_indent, subsequent_indent=indent
        ).lstrip()


class CommandParser(argparse.ArgumentParser):
    """A command's parser, whose flags are added when the command is used."""

    def __init__(
        self,
        *args: Any,
        fill: Callable[[argparse.ArgumentParser], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Args: fill: adds the flags when the command is used."""
        own = {"allow_abbrev": False, "add_help": False, "formatter_class": HelpFormatter}
        super().__init__(*args, **{**own, **kwargs})
        self._fill = fill
        self.unlisted: set[str] = set()
        """Titles of groups that only --help=WORD shows."""
        self.words = ""
        """Name of the last positional argument, if it takes words between flags too."""
        self.root: CommandParser = self
        """Parser of the whole command line."""
        self.siblings: Mapping[str, CommandParser] = {}
        """Parsers of all commands, by name; error messages name those that have a flag."""
        self.remedies: dict[str, str] = {}
        """Remedies by the flags and commands of other programs that are not served."""
        self.add_argument(
            "-h",
            "--help",
            action=_Help,
            nargs="?",
            metavar="WORD",
            default=argparse.SUPPRESS,
            help="show this, with =WORD the flags about a word, with =all every flag",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reads underscores in names as dashes, and refuses names that it does not know."""
        self.fill_once()
        given = sys.argv[1:] if args is None else args
        found, rest = super().parse_known_args(self._with_dashes(given), namespace)
        if rest and self.words and not any(one.startswith("-") for one in rest):
            setattr(found, self.words, [*getattr(found, self.words, ()), *rest])
            rest = []
        if len(rest) == 1 and not rest[0].startswith("-") and (name := self._left_out(found)):
            setattr(found, name, rest.pop())
        if rest:
            self.error(self._unknown(rest))
        return found, rest

    def _left_out(self, found: argparse.Namespace) -> str:
        """Returns the name of the last positional argument if it may be left out, and is.

        argparse takes it for left out where a flag stands before it, and others before that.
        """
        last = [action for action in self._actions if not action.option_strings][-1:]
        names = [one.dest for one in last if one.nargs == "?" and one.type is None]
        return next((name for name in names if getattr(found, name) is None), "")

    def error(self, message: str) -> NoReturn:
        """Ends the process with a message of one line."""
        message = _VALUE_FOR_NONE.sub("it takes no value", message)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def format_help(self, word: str = "") -> str:
        """Returns the help, or its part about a word."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        if not word:
            formatter.add_text(self.description)
        for group in self._action_groups:
            if not word and group.title in self.unlisted:
                continue
            formatter.start_section(group.title)
            if not word:
                formatter.add_text(group.description)
            formatter.add_arguments(
                [one for one in group._group_actions if _is_about(one, group.title or "", word)]
            )
            formatter.end_section()
        if not word:
            formatter.add_text(self.epilog)
        return formatter.format_help()

    def group_titles(self) -> list[str]:
        return [group.title or "" for group in self._action_groups if group._group_actions]

    def has_help_on(self, word: str) -> bool:
        """Returns whether a part of the help is about a word."""
        return any(
            _is_about(action, group.title or "", word)
            for group in self._action_groups
            for action in group._group_actions
        )

    def flags_about(self, word: str) -> Iterator[tuple[str, str]]:
        """Yields the flags of all commands that are about a word, each with its command."""
        for action in self._actions:
            for name, command in _commands(action).items():
                command.fill_once()
                for group in command._action_groups:
                    for one in group._group_actions:
                        is_flag = one.option_strings and not isinstance(one, _Help)
                        if is_flag and _is_about(one, group.title or "", word):
                            yield min(one.option_strings, key=_is_short), name
                yield from ((flag, f"{name} {of}") for flag, of in command.flags_about(word))

    def fill_once(self) -> None:
        """Adds the flags unless that is done."""
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill(self)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses an unknown command, and suggests the closest one."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            if remedy := self.remedies.get(str(value)):
                raise argparse.ArgumentError(None, f"there is no command {value}; {remedy}")
            close = did_you_mean(str(value), action.choices)
            name = f"command {value}" if str(value).isalpha() else "such command"
            raise argparse.ArgumentError(None, f"there is no {name}{close}")
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            choices = ", ".join(map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"it takes one of {choices}") from None

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            kind = "a whole number" if action.type is int else "a number"
            raise argparse.ArgumentError(action, f"it takes {kind}") from None

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Returns the flags that an argument begins with: -n for -n2, but not -tp for -t.

        argparse completes a name after one dash even if `allow_abbrev` is false. What follows -n
        must be a number, and nothing follows -h, so that -ngl and -hf are not taken for them.
        """
        return [
            one
            for one in super()._get_option_tuples(option_string)
            if option_string.startswith(one[1])
            and not isinstance(one[0], _Help)
            and (one[0].type is not int or option_string.removeprefix(one[1]).isdecimal())
        ]

    def _with_dashes(self, args: Sequence[str]) -> list[str]:
        ends = args.index("--") if "--" in args else len(args)
        named = [*map(self._with_dash, args[:ends])]
        following = [*named[1:], ""]
        return [*map(self._with_own_value, named, following), *args[ends:]]

    def _with_own_value(self, argument: str, following: str) -> str:
        """Returns -fa=on for -fa that is followed by something else than one of its values."""
        action = self._option_string_actions.get(argument)
        if action is None or action.nargs != "?" or not action.choices:
            return argument
        return argument if following in action.choices else f"{argument}={action.const}"

    def _with_dash(self, argument: str) -> str:
        """Returns --max-num-seqs=1 for --max_num_seqs=1, and --config-of=1 for --config-of.part=1
        unless that part is a flag here.

        vLLM takes both: parts of a flag that is JSON may be set one by one.
        """
        if not (found := _NAME.match(argument)):
            return argument
        name, rest = found[0].replace("_", "-"), argument[found.end() :]
        part, known = rest.partition("=")[0], self._option_string_actions
        if rest.startswith(".") and name in known and name + part not in known:
            rest = rest[len(part) :]
        return name + rest

    def _unknown(self, rest: Sequence[str]) -> str:
        names = [one.partition("=")[0] for one in rest if one.startswith("--")]
        names += [one for one in rest if _SHORT_NAME.fullmatch(one)]
        if not names and not self._get_positional_actions():
            return "the command takes flags, and no argument without one"
        if not names:
            return "more arguments than the command takes; quote an argument with spaces"
        name, known = names[0], self._option_string_actions
        address = next((one for one in _ADDRESSES if one in known), None)
        if remedy := self.remedies.get(name):
            hint = f"; {remedy}"
        elif address and name in _ADDRESSES_ELSEWHERE:
            hint = f"; {address} HOST:PORT is the address, of gRPC"
        elif others := [other for other in self.siblings if self._has(other, name)]:
            more = ", ..." if len(others) > _MOST_NAMED else ""
            hint = f"; it is a flag of signalbox {', '.join(others[:_MOST_NAMED])}{more}"
        else:
            hint = did_you_mean(name, known)
        return f"there is no flag {name}{hint}"

    def _has(self, command: str, flag: str) -> bool:
        """Says whether another command has a flag, and under this name."""
        other = self.siblings[command]
        other.fill_once()
        return any(
            flag in action.option_strings
            for group in other._action_groups
            for action in group._group_actions
            if group.title not in other.unlisted and action.help != argparse.SUPPRESS
        )


class _Help(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, CommandParser)
        word = values.lower().replace("_", "-") if isinstance(values, str) else ""
        if word == LIST_GROUPS:
            print(*parser.group_titles(), sep="\n")
            parser.exit()
        if word == ALL:
            parser.unlisted = set()
            word = ""
        flags: dict[str, list[str]] = {}
        for flag, command in parser.flags_about(word) if word else ():
            flags.setdefault(flag, []).append(command)
        if word and not flags and not parser.has_help_on(word):
            parser.exit(2, f"{parser.prog}: no flag is about {word!r}\n")
        print(parser.format_help(word), end="")
        if flags:
            lines = (f"{flag}: {', '.join(_outermost(of))}" for flag, of in flags.items())
            print("\nflags of commands:", *lines, sep="\n  ")
        sys.stdout.flush()  # a reader that has left is an error here, not when the process ends
        parser.exit()


def _commands(action: argparse.Action) -> dict[str, CommandParser]:
    """Returns the parsers of an action's commands, by name."""
    is_choice = isinstance(action, argparse._SubParsersAction)
    return dict(action.choices) if is_choice else {}  # type: ignore[arg-type]


def _outermost(commands: list[str]) -> list[str]:
    """Leaves out `config show serve` where `serve` is, whose flags it takes."""
    return [one for one in commands if " " not in one or one.split()[-1] not in commands]


def _is_short(flag: str) -> bool:
    return not flag.startswith("--")


def _is_about(action: argparse.Action, group: str, word: str) -> bool:
    if action.help == argparse.SUPPRESS:  # of a setting that is gone
        return False
    texts = [*action.option_strings, action.dest, group, str(action.help)]
    if isinstance(action, argparse._SubParsersAction):
        texts += action.choices
    return any(word in text.lower() for text in texts)
