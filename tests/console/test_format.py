"""The console's own files are as prettier prints them."""

import subprocess
from pathlib import Path

from tests.router.http.test_console_files import OWN
from tests.waiting import EVENT_S

PRETTIER = Path(__file__).parent / "node_modules" / "prettier" / "bin" / "prettier.cjs"


def test_own_files_are_formatted() -> None:
    command = ["node", PRETTIER, "--check", "--ignore-unknown", "--print-width", "100", *OWN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=EVENT_S)
    assert done.returncode == 0, f"prettier --print-width 100 --write: {done.stderr}"
