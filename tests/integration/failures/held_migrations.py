"""A `signalbox` process that stops in the middle of a migration, until a file is gone.

A scheduler makes the file when it begins the first round of copies in the state that is asked for;
workers that export wait with each block while it is there.
"""

import os
import time
from pathlib import Path
from typing import Any

from signalbox.__main__ import main as run
from signalbox_scheduler.transfers import migration_rounds
from signalbox_scheduler.transfers.migration_rounds import MigrationRounds
from signalbox_worker.kv.store.transfer import ExportedBlocks

HOLD, STATE = "TEST_HOLD", "TEST_STATE"
"""Environment variables: path of the file, and "copying" or "paused"."""


def main() -> int:
    hold, is_paused = Path(os.environ[HOLD]), os.environ[STATE] == "paused"
    begin, copy_out, is_held = MigrationRounds.begin, ExportedBlocks.copy_out, False

    def begin_and_hold(*args: Any) -> bool:
        nonlocal is_held
        has_begun, migration = begin(*args), args[1]
        if not is_held and migration.fetch is not None and migration.has_paused is is_paused:
            hold.touch()
            is_held = True
        return has_begun

    def wait_and_copy(exported: ExportedBlocks, index: int) -> bytearray | None:
        while hold.exists():
            time.sleep(0.01)
        return copy_out(exported, index)

    migration_rounds.GRACE_S = 600.0
    MigrationRounds.begin = begin_and_hold  # type: ignore[method-assign]
    ExportedBlocks.copy_out = wait_and_copy  # type: ignore[method-assign]
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
