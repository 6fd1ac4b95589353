"""Flags and commands of other programs do what ours do, or the error says what to use."""

import pytest

from signalbox import cli
from signalbox.client.foreign_flags import OTHER_NAMES, REMEDIES, TEXT_FLAGS, text_of
from signalbox.commands.foreign_commands import ALIASES, POINTERS

COMMANDS = ("chat", "generate", "run", "bench", "embed", "models", "tokenize")


def parsed(*arguments: str) -> dict[str, object]:
    return {name: v for name, v in cli.parse(arguments).items() if name != "run"}


@pytest.mark.parametrize("dest", OTHER_NAMES)
def test_other_names_set_what_ours_set(dest: str, capsys: pytest.CaptureFixture[str]) -> None:
    ours, num_alike = f"--{dest.replace('_', '-')}", 0
    for command in COMMANDS:
        try:
            expected = parsed(command, ours, "1")
        except SystemExit:  # this command has no such flag
            continue
        for name in OTHER_NAMES[dest]:
            if dest == "model" and command == "run":
                continue  # there it is MODEL
            assert parsed(command, name, "1") == expected
            num_alike += 1
    assert num_alike
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", REMEDIES)
def test_what_is_no_flag_here_names_what_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse(["models", name, "secret"])
    errors = capsys.readouterr().err
    assert f"no flag {name}; {REMEDIES[name]}" in errors
    assert "secret" not in errors


@pytest.mark.parametrize("flag", TEXT_FLAGS)
def test_a_flag_with_the_text_is_the_argument(flag: str) -> None:
    for command, name in (("chat", "message"), ("generate", "prompt")):
        assert text_of(parsed(command, flag, "Hi"), name) == "Hi"
        with pytest.raises(ValueError, match="given twice"):
            text_of(parsed(command, flag, "Hi", "there"), name)


def test_grammars_exclude_each_other_under_all_of_their_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.parse(["chat", "Hi", "--regex", "a", "--grammar-file", "g"])
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("alias", [*ALIASES, "help"])
def test_a_command_of_another_program_is_one_of_ours(
    alias: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ALIASES.get(alias, ["--help"])
    with pytest.raises(SystemExit) as ended:
        cli.parse([*alias.split(), "--help"])
    assert not ended.value.code
    said = capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.parse([*command, "--help"])
    assert said == capsys.readouterr().out


@pytest.mark.parametrize("command", POINTERS)
def test_a_command_that_is_not_ours_names_what_to_use(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.parse([command, "secret"])
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert f"there is no command {command}; {POINTERS[command]}" in errors
    assert "secret" not in errors


def test_help_of_a_command_is_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse(["help", "pull"])
    assert capsys.readouterr().out.startswith("usage: signalbox pull ")
