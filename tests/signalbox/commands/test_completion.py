"""`signalbox completion` in the shells that are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from signalbox.commands.completion import SHELLS
from tests.signalbox.stacks import run_here

ASK = {
    "bash": 'source "$1"; COMP_WORDS=(signalbox $2); COMP_CWORD=$3;'
    ' _shtab_signalbox; echo "${COMPREPLY[@]}"',
    "fish": 'source $argv[1]; complete -C "signalbox $argv[2]"',
}


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def script(shell: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = run_here("completion", shell)
    assert done.returncode == 0, done.stderr
    path = tmp_path_factory.mktemp("completion") / f"signalbox.{shell}"
    path.write_text(done.stdout)
    return path


def test_a_script_names_each_command_and_no_flag_of_another_server(script: Path) -> None:
    text = script.read_text()
    for name in ("serve", "completion", "max-num-seqs", "temperature"):
        assert name in text
    for name in ("flash-attn", "enable-chunked-prefill", "repeat-penalty"):
        assert name not in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("se", "serve"),
        ("serve --max-num-s", "--max-num-seqs"),
        ("config show sch", "scheduler"),
        ("keys cr", "create"),
    ],
)
def test_a_shell_completes_commands_and_flags(
    words: str, expected: str, shell: str, script: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    subprocess.run([shell, "-n", str(script)], check=True)
    if shell not in ASK:  # zsh completes on a terminal alone
        return
    place = str(len(words.split()))
    asked = [shell, "-c", ASK[shell], *(["sh"] if shell == "bash" else []), str(script)]
    done = subprocess.run([*asked, words, place], capture_output=True, text=True, check=True)
    assert expected in done.stdout.split()
