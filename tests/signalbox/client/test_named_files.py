"""A file that a command cannot use is one line with its flag, its path and the reason."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from signalbox import cli
from signalbox.commands.inspect import dump, profile

KINDS = ("missing", "folder", "not UTF-8")
READ: dict[str, tuple[list[str], str]] = {
    "keys list": (["keys", "list", "--file", "FILE"], "read --file "),
    "bench": (["bench", "--replay", "FILE"], "read --replay "),
    "generate": (["generate", "a", "--json-schema", "FILE"], "read --json-schema "),
    "chat": (["chat", "a", "--grammar", "FILE"], "read --grammar "),
    "config check": (["config", "check", "FILE"], "read --config "),
    "router": (["router", "--config", "FILE"], "read --config "),
}


def make_file(folder: Path, kind: str) -> Path:
    path = folder / "named.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "not UTF-8":
        path.write_bytes(b"\xff\xfe\x80")
    return path


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that fails; returns its one line."""
    assert cli.main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("arguments", "expected"), READ.values(), ids=READ)
def test_a_file_that_cannot_be_read_is_named(
    arguments: list[str],
    expected: str,
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = make_file(tmp_path, kind)
    given = [str(path) if one == "FILE" else one for one in arguments]
    reasons = {
        "missing": "No such file or directory",
        "folder": "Is a directory",
        "not UTF-8": "it is not UTF-8",
    }
    assert said(given, capsys).endswith(f": cannot {expected}{path}: {reasons[kind]}")


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_recording_that_cannot_be_read_is_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_file(tmp_path, kind)
    assert said(["replay", str(path)], capsys).startswith(f"signalbox replay: cannot read {path}: ")


def test_the_authority_of_a_connection_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ca.pem"
    reason = f"cannot read --tls-ca {path}: No such file or directory"
    assert said(["generate", "a", "--tls-ca", str(path)], capsys).endswith(reason)


def test_a_certificate_without_its_key_is_named_by_flags(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for given in ("--tls-cert", "--tls-key"):
        line = said(["generate", "a", "--tls-ca", "ca.pem", given, "x.pem"], capsys)
        assert line == "signalbox generate: --tls-cert and --tls-key go together; give both"


def test_a_file_of_results_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For `dump` and `profile`, whose services are not asked here."""

    class Worker:
        def __init__(self, *_: object) -> None:
            self.info = self.__aenter__

        async def __aenter__(self) -> "Worker":
            return self

        async def __aexit__(self, *_: object) -> None: ...

    async def state(*_: object, **__: object) -> list[object]:
        return []

    async def recorded(*_: object) -> SimpleNamespace:
        return SimpleNamespace(trace=b"")

    monkeypatch.setattr(dump, "_ask", state)
    monkeypatch.setattr(profile, "WorkerClient", Worker)
    monkeypatch.setattr(profile, "_record", recorded)
    folder = tmp_path / "folder.png"
    folder.mkdir()
    reason = "Is a directory"
    assert said(["dump", str(folder)], capsys) == (
        f"signalbox dump: cannot write {folder}: {reason}"
    )
    asked = ["profile", "--worker", "127.0.0.1:1", "--output", str(folder)]
    assert said(asked, capsys) == f"signalbox profile: cannot write --output {folder}: {reason}"


@pytest.mark.parametrize("action", ["create", "revoke"])
def test_a_file_of_keys_that_cannot_be_written_is_named(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(["keys", action, "red", "--file", str(tmp_path)], capsys)
    assert line == f"signalbox keys: cannot write --file {tmp_path}: Is a directory"
