"""A process ends with the one that started it, whatever the system lacks."""

import os
import subprocess
import sys

import pytest

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
