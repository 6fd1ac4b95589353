"""Folders for files that workers are sent go after a process that was killed, and only then."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from signalbox_rpc.lifetime.private_folder import PrivateFolder, remove_leftovers

OWNER = """
import sys
from signalbox_worker.files.adapters.received_adapters import FileChunk, ReceivedAdapters
from signalbox_worker.files.adapters.received_adapters import write_chunk
received = ReceivedAdapters()
folder = received.begin()
write_chunk(folder, FileChunk("adapter_config.json", b"{}"))
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_kept(
    temporary: Path,
) -> None:
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert folder.parent.parent == temporary
        remove_leftovers()
        assert (folder / "adapter_config.json").exists()
        owner.kill()
    own = PrivateFolder("stack")
    assert list(temporary.iterdir()) == [own.path]
    own.close()
    assert not list(temporary.iterdir())


def test_links_files_and_folders_of_others_are_left_alone(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").touch()
    (temporary / "signalbox-adapters-link").symlink_to(outside)
    (temporary / "signalbox-adapters-file").touch()
    (temporary / "another").mkdir()
    remove_leftovers()
    assert len(list(temporary.iterdir())) == 3 and (outside / "kept").exists()
    (temporary / "signalbox-adapters-theirs").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: temporary.stat().st_uid + 1)
    remove_leftovers()
    assert (temporary / "signalbox-adapters-theirs").exists()


def test_where_nothing_can_be_locked_folders_are_made_and_none_is_removed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EBADF, "of a folder in NFS")

    monkeypatch.setattr(fcntl, "flock", flock)
    first, second = PrivateFolder("stack"), PrivateFolder("stack")
    assert {*temporary.iterdir()} == {first.path, second.path}
    first.close()
    second.close()
    assert not list(temporary.iterdir())


def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process starts between the making of a folder and its lock."""
    make, made = tempfile.mkdtemp, list[str]()

    def make_then_remove(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            remove_leftovers()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_then_remove)
    folder = PrivateFolder("stack")
    assert [str(folder.path)] == made[1:] and folder.path.exists()
    folder.close()
