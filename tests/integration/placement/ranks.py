"""Ranks that a test starts as torchrun, Slurm or a LeaderWorkerSet would."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.signalbox.stacks import COMMAND, environment
from tests.waiting import EVENT_S, eventually, wait_until

MODEL_FLAGS = (
    *("--device=cpu", "--dtype=float32", "--num-threads=1", "--kv-cache-memory=0.002"),
    *("--swap-space=0.001", "--max-num-seqs=4", "--max-num-batched-tokens=64"),
)


@dataclass
class StartedRanks:
    """Processes of one worker, by rank, and what they log."""

    folder: Path
    processes: list[psutil.Popen] = field(default_factory=list)

    def start(
        self,
        *arguments: str,
        variables: dict[str, str],
        folder: Path | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """Starts the next rank.

        Args:
            folder: that it works in.
            within: what runs its command, such as on another host.
        """
        with self._log(len(self.processes)).open("wb") as sink:
            self.processes.append(
                psutil.Popen(
                    [
                        *within,
                        *COMMAND,
                        "worker",
                        *MODEL_FLAGS,
                        "--placement=environment",
                        *arguments,
                    ],
                    env=environment() | variables,
                    stderr=sink,
                    cwd=folder,
                )
            )

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.log"

    def log(self, rank: int = 0) -> str:
        return self._log(rank).read_text()

    def until_ready(self) -> None:
        def is_ready() -> bool:
            assert self.processes[0].poll() is None, self.log()
            return "worker ready" in self.log()

        wait_until(is_ready, told=self.log)

    def statuses(self) -> list[int]:
        """Waits until all have ended."""
        return [int(one.wait(EVENT_S)) for one in self.processes]


@contextlib.contextmanager
def started_ranks(folder: Path) -> Iterator[StartedRanks]:
    """Yields no ranks; kills those that are started and have not ended."""
    ranks = StartedRanks(folder)
    try:
        yield ranks
    finally:
        for one in ranks.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
            one.wait()


def of_set(index: int, size: int, leader: str = "127.0.0.1") -> dict[str, str]:
    """Variables of a LeaderWorkerSet."""
    return {
        "LWS_WORKER_INDEX": str(index),
        "LWS_GROUP_SIZE": str(size),
        "LWS_LEADER_ADDRESS": leader,
    }


async def until_ready(ranks: StartedRanks) -> None:
    await asyncio.to_thread(ranks.until_ready)


async def statuses(ranks: StartedRanks) -> list[int]:
    await eventually(lambda: all(one.poll() is not None for one in ranks.processes))
    return ranks.statuses()
