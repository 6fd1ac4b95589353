"""`signalbox keys`: what it writes is what the router takes."""

import json
import subprocess
from pathlib import Path

import pytest

from signalbox import cli
from signalbox_router.limits.api_keys import KeyRing, read_keys
from tests.signalbox.stacks import COMMAND, environment, run_here, serve, signalbox
from tests.waiting import EVENT_S


def test_a_created_key_is_let_in_and_its_file_does_not_hold_it(tmp_path: Path) -> None:
    done = signalbox("keys", "create", "blue", "--models", "a,b", "--tokens-per-minute", "60")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "keys.yaml"
    path.write_text(done.stdout)
    key = done.stderr.split()[-1]
    assert key not in done.stdout
    found = KeyRing(str(path)).find([("authorization", f"Bearer {key}")])
    assert (found.name, found.tenant, found.tokens_per_minute) == ("blue", "blue", 60)
    assert found.models == {"a", "b"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with keys for red and blue, made the one and the other way."""
    path = tmp_path / "keys.yaml"
    path.write_text("# ours\n")
    limits = ["--max-concurrent-requests=3", "--operator"]
    assert keys("create", "red", "--file", str(path), *limits) == 0
    with path.open("a") as file:
        created = subprocess.run(
            [*COMMAND, "keys", "create", "blue"], stdout=file, env=environment(), timeout=EVENT_S
        )
    assert created.returncode == 0
    return path


def keys(*arguments: str) -> int:
    return cli.main(["keys", *arguments])


def names(path: Path) -> list[str]:
    return [key.name for key in read_keys(path)]


def test_keys_are_listed_without_their_secrets(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert keys("list", "--file", str(path), "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    fields = ("name", "max_concurrent_requests", "operator")
    assert [tuple(one[field] for field in fields) for one in listed] == [
        ("red", 3, True),
        ("blue", None, False),
    ]
    assert keys("list", "--file", str(path)) == 0
    assert "red" in capsys.readouterr().out


def test_a_revoked_key_is_taken_out_and_the_rest_of_the_file_stays(path: Path) -> None:
    assert keys("create", "green", "--file", str(path)) == 0
    before = path.read_text()
    assert keys("revoke", "blue", "--file", str(path)) == 0
    assert names(path) == ["red", "green"]
    assert keys("revoke", "green", "--file", str(path)) == 0
    assert path.read_text().startswith("# ours\n- name")
    assert path.read_text() in before
    assert keys("revoke", "red", "--file", str(path)) == 0
    assert path.read_text() == "# ours\n---\n"  # not empty, as a file that is being written
    assert keys("create", "red", "--file", str(path)) == 0
    assert names(path) == ["red"]


def test_a_name_is_not_given_twice(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.read_text()
    for name in ("red", "blue"):
        assert keys("create", name, "--file", str(path)) == 1
        assert f"has a key for {name}" in capsys.readouterr().err
    with path.open("a") as file:
        again = subprocess.run(
            [*COMMAND, "keys", "create", "red"],
            stdout=file,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
            timeout=EVENT_S,
        )
    assert again.returncode == 1
    assert "has a key for red" in again.stderr
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (None, ["revoke", "red"], "cannot write --file "),
        (None, ["list"], "cannot read --file "),
        ("", ["revoke", "red"], "no key for red; it has: none"),
        ("- name: [", ["revoke", "red"], "cannot read"),
        ("- name: [", ["create", "red"], "cannot read"),
        ("- {name: red, sha256: '%s'}\n" % ("0" * 64), ["revoke", "red"], ""),
        ("[{name: red, sha256: '%s'}]\n" % ("0" * 64), ["revoke", "red"], "take red out"),
        ("", ["create", "red", "--tokens-per-minute=0"], "at least 1"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    tmp_path: Path,
    text: str | None,
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "keys.yaml"
    if text is not None:
        path.write_text(text)
    status = keys(*arguments, "--file", str(path))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert expected in lines[0]
    if expected:
        assert status == 1
        assert (path.read_text() if path.exists() else None) == text


def test_serve_asks_for_a_key_that_no_list_of_processes_shows(tmp_path: Path) -> None:
    key = "sk-do-not-show"
    with serve(tmp_path / "log", "--simulate", variables={"SIGNALBOX_API_KEY": key}) as stack:
        commands = [child.cmdline() for child in stack.children().values()]
        assert len(commands) == 3
        assert not any(key in word for words in commands for word in words)
        asked = ("generate", "hello", "--max-tokens=3", "--router", stack.address)
        assert "set --api-key or SIGNALBOX_API_KEY" in run_here(*asked).stderr
        done = run_here(*asked, "--api-key", key)
        assert done.returncode == 0, done.stderr
        assert stack.stop() == 0
    assert key not in stack.log.read_text()
