"""A process ends with the one that started it, whatever the system lacks."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from signalbox_rpc.lifetime import parent as parent_module
from tests.waiting import EVENT_S

CHILD = """
import os, sys, tempfile, time
{without}
from signalbox_rpc.lifetime.parent import end_with_parent
end_with_parent()
print("runs", flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys
from signalbox_rpc.lifetime.parent import PARENT_PID
variables = os.environ | {{PARENT_PID: str(os.getpid())}}
subprocess.run([sys.executable, "-c", {child!r}], env=variables)
"""

OWNER = """
import sys
from signalbox_rpc.lifetime.private_folder import PrivateFolder
folder = PrivateFolder("ranks")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("without", ["", "del os.pidfd_open", "del tempfile.gettempdir"])
def test_a_process_ends_with_its_parent(without: str) -> None:
    program = PARENT.format(child=CHILD.format(without=without))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "runs\n"
        parent.kill()
        assert parent.stdout.read() == ""  # once the child has ended, too


def test_the_folder_of_a_parent_that_has_handed_its_children_on_is_removed_once_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one whose last thread still frees memory: it is the parent no more, and has a lock."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(parent_module, "_CLOSING_MS", 1000 * EVENT_S)
    monkeypatch.setattr(parent_module, "leave", lambda _status: None)
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        watch = threading.Thread(target=parent_module._watch, args=(owner.pid,))
        monkeypatch.setattr(os, "getppid", lambda: 1)
        watch.start()
        watch.join(0.2)
        assert folder.is_dir()
        owner.kill()
        watch.join(EVENT_S)
    assert not watch.is_alive()
    assert not any(tmp_path.iterdir())
