"""Workers whose ranks are threads, and the CPU pools of all of them."""

from typing import Any

from signalbox_worker.runner.ranks.launchers import LocalRanks, StartedRank
from signalbox_worker.runner.ranks.ranked_runner import RankedRunner
from signalbox_worker.runner.ranks.service.rank_messages import Start
from tests.gpu_worker.runner.ranks.thread_ranks import ThreadRank

NUM_BLOCKS = 8


class ThreadRanks:
    """A worker, its ranks, and pools of a few blocks."""

    def __init__(self, start: Start) -> None:
        self._started: list[ThreadRank] = []
        self.runner = RankedRunner(start, on_lost=lambda _: None, ranks=LocalRanks(self._launch))
        self.capacity = self.runner.profile()
        self.renew_pools()

    def _launch(self, rank: int, address: str) -> StartedRank:
        self._started.append(ThreadRank(rank, address))
        return self._started[-1]

    def renew_pools(self) -> None:
        self.runner.init_cache_engine(num_gpu_blocks=NUM_BLOCKS, num_cpu_blocks=NUM_BLOCKS)

    @property
    def shares(self) -> list[Any]:
        """What each rank runs its share of the model with."""
        return [self.runner._own, *(one.shard for one in self._started)]

    def block(self, rank: int, index: int) -> memoryview:
        found: memoryview = self.shares[rank].pools.cpu_block(index)
        return found

    def fill(self, *numbers: int) -> None:
        """Writes to each rank's block 0, 1, ... what stands for its share of these blocks."""
        for rank in range(len(self.shares)):
            for index, number in enumerate(numbers):
                block = self.block(rank, index)
                block[:] = bytes([16 * number + rank]) * len(block)
