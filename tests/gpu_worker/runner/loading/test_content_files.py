"""A digest is of all bytes of the files, and is kept only as long as nothing has changed."""

import os
from pathlib import Path

import pytest

from signalbox_worker.runner.loading import content_files
from signalbox_worker.runner.loading.content_files import ContentFile, FilesChanged, content_digest


def make(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def digest(*paths: Path, known: dict[str, str] | None = None) -> bytes:
    files = [ContentFile.note(path) for path in paths]
    return content_digest(files, {} if known is None else known, is_called_off=lambda: False)


def test_every_byte_counts_and_names_do_not(tmp_path: Path) -> None:
    content = bytes(5 << 20)
    first = make(tmp_path / "a", content)
    copy = make(tmp_path / "b", content)
    assert digest(first) == digest(copy)
    for at in (0, 3_333_333, len(content) - 1):
        changed = bytearray(content)
        changed[at] ^= 1
        assert digest(make(copy, bytes(changed))) != digest(first)
    other = make(tmp_path / "c", b"other")
    assert digest(first, other) != digest(other, first)


def test_a_file_that_changes_between_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "a", b"old")
    noted = [ContentFile.note(path)]
    make(path, b"new")
    os.utime(path, ns=(1, 1))  # a restored time does not restore the time of the change
    with pytest.raises(FilesChanged, match="changed since"):
        content_digest(noted, {}, is_called_off=lambda: False)
    other = make(tmp_path / "other", b"old")
    noted = [ContentFile.note(path)]
    other.replace(path)
    with pytest.raises(FilesChanged, match="changed since"):
        content_digest(noted, {}, is_called_off=lambda: False)


def test_a_file_is_read_once_as_long_as_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, known = make(tmp_path / "a", b"weights"), dict[str, str]()
    monkeypatch.setattr(content_files, "_RACY_NS", -1)
    expected = digest(path, known=known)
    assert len(known) == 1
    monkeypatch.setattr(content_files, "_read", None)  # which cannot be called
    assert digest(path, known=known) == expected


def test_the_digest_of_a_file_that_was_just_written_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, known = make(tmp_path / "a", b"weights"), dict[str, str]()
    monkeypatch.setattr(content_files, "_RACY_NS", 10**18)  # the test may be that slow
    digest(path, known=known)
    assert not known


def test_reading_can_be_called_off(tmp_path: Path) -> None:
    path = make(tmp_path / "a", b"weights")
    with pytest.raises(FilesChanged, match="called off"):
        content_digest([ContentFile.note(path)], {}, is_called_off=lambda: True)
