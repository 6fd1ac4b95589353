"""Services that blocks start end with the session, also if the run of the tests is killed."""

import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, Block
from tests.docs.session import Session
from tests.waiting import wait_until, wait_until_ended

SERVICE = """
echo $BASHPID > pids
echo Ctrl-C stops it
(echo $BASHPID >> pids; exec sleep 1000) | cat
"""
BLOCK = Block(ROOT / "README.md", 1, "sh", "service", SERVICE)
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.docs.session import Session
from tests.docs.test_session import BLOCK, pids_of
session = Session(Path(sys.argv[1]))
session.run(BLOCK)
pids_of(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def pids_of(folder: Path) -> list[int]:
    """Returns the processes of the service once there are both."""
    found: list[int] = []

    def are_both() -> bool:
        found[:] = map(int, (folder / "pids").read_text().split())
        return len(found) == 2

    wait_until(are_both)
    return found


def test_services_end_with_their_session(tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        session.run(BLOCK)
        pids = pids_of(tmp_path)
    for pid in pids:
        wait_until_ended(pid)


def test_no_service_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -9
    for pid in pids_of(tmp_path):
        wait_until_ended(pid)
