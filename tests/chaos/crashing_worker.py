"""A simulated worker whose process dies of what it computes.

`python -m tests.chaos.crashing_worker 77@30 worker ...` is `signalbox worker ...` that is killed by
each step with token 77 at position 30; "any" in the place of "77@30" is each step.
"""

import os
import signal
import sys

from gpu_worker.batch.batch import Batch, BatchOutput
from gpu_worker.simulated import simulated_runner
from gpu_worker.simulated.simulated_runner import SimulatedRunner

ANY = "any"


class CrashingRunner(SimulatedRunner):
    """Ends its process in place of a deadly step, as the kernel does: at once, with no cleanup."""

    deadly = ANY

    def execute(self, batch: Batch) -> BatchOutput:
        if self._is_deadly(batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(batch)

    def _is_deadly(self, batch: Batch) -> bool:
        if self.deadly == ANY:
            return True
        token_id, position = map(int, self.deadly.split("@"))
        return bool(((batch.token_ids == token_id) & (batch.positions == position)).any())


def main() -> int:
    CrashingRunner.deadly = sys.argv.pop(1)
    simulated_runner.SimulatedRunner = CrashingRunner  # type: ignore[misc]
    from signalbox.__main__ import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
