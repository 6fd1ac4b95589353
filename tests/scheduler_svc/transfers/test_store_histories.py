"""Random histories of one worker and its store: exact output, and no block lost on any tier.

The state machine of the scheduler has stores, too, among much else; here nearly every request is
stored, fetched, or in the way of one that is.
"""

from collections.abc import Callable, Iterator

import pytest

from signalbox_contract.model import StoreCapacity
from tests.scheduler_svc.fake_store import Ending
from tests.scheduler_svc.make import Loop
from tests.scheduler_svc.transfers.test_export_histories import History


class StoreHistory(History):
    """What happens to one worker, which is lost now and then, and its store, which stays."""

    num_loops = 1

    def __init__(self, seed: int) -> None:
        self.num_fetched = self.num_stored = self.num_clears = 0
        self.faults: list[str] = []
        super().__init__(seed)

    def _join(self) -> Loop:
        self.options |= {"max_num_seqs": self.rng.choice([2, 4])}
        self.options |= {"num_gpu_blocks": self.rng.choice([6, 9, 14])}
        self.options |= {"num_cpu_blocks": self.rng.choice([6, 8, 20])}
        self.options |= {"store": StoreCapacity(kind="memory")}
        return super()._join()

    def _endings(self) -> Iterator[Ending]:
        """Half of the moves end well, soon or late; the others in part, or by an error."""
        while True:
            num_steps = self.rng.choice([0, 0, 1, 2, 5])
            if self.rng.random() < 0.5:
                yield Ending(num_steps)
            else:
                failed = self.rng.choice(["", "", "input/output error"])
                yield Ending(num_steps, self.rng.choice([0, 1, 2]), failed)

    def lose_blocks(self) -> None:
        for block_hash in sorted(self.kept)[:: self.rng.randrange(1, 4)]:
            del self.kept[block_hash]

    def clear(self) -> None:
        self.num_clears += 1
        (loop,) = self.loops
        loop.scheduler.clear_prefix_cache(None, self.faults.append)
        assert not loop.scheduler.blocks.gpu.hashes
        assert not loop.scheduler.blocks.cpu.hashes

    def drain(self) -> None:
        super().drain()
        self.lose_worker()

    def _count(self, loop: Loop) -> None:
        assert loop.worker.store is not None
        self.num_fetched += loop.worker.store.num_fetched
        self.num_stored += loop.worker.store.num_stored

    @property
    def events(self) -> dict[Callable[[], None], float]:
        often = {self.lose_worker: 2, self.lose_blocks: 0.5, self.clear: 0.5, self.wait: 1}
        return super().events | often | {self.step: 12}

    def run(self) -> None:
        super().run()
        assert len(self.faults) == self.num_clears, "a clear ends once, also if its worker is lost"

    def check(self) -> None:
        super().check()
        for block_hash, block in self.kept.items():
            assert block == self.content[block_hash], "the store has a wrong block"


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_whatever_the_store_does_output_is_exact_and_blocks_are_conserved(first: int) -> None:
    histories = [StoreHistory(seed) for seed in range(first, first + 10)]
    for history in histories:
        history.run()
    assert sum(one.num_fetched for one in histories) > 20, "else this proves little"
    assert sum(one.num_stored for one in histories) > 20
