"""Random histories of one worker and its store: exact output, and no block lost on any tier.

The state machine of the scheduler has stores, too, among much else; here nearly every request is
stored, fetched, or in the way of one that is.
"""

import random
from collections.abc import Iterator

import pytest

from contract.model import StoreCapacity
from scheduler_svc.queue.admission_queue import AdmissionQueue
from scheduler_svc.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.fake_store import Block, Ending, FakeStore
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    Loop,
    assert_all_free,
    content_of,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

NUM_EVENTS = 150


class History:
    """What happens to one worker, which is lost now and then, and its store, which stays."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.options = {
            "num_gpu_blocks": rng.choice([6, 9, 14]),
            "num_cpu_blocks": rng.choice([6, 8, 20]),
            "max_num_seqs": rng.choice([2, 4]),
            "max_num_batched_tokens": rng.choice([8, 24]),
        }
        self.depth, self.step_s = rng.choice([1, 2]), rng.choice([0.001, 0.01, 0.1])
        self.admission = AdmissionQueue()
        self.kept: dict[bytes, Block] = {}
        self.content: dict[bytes, Block] = {}
        self.groups: list[SequenceGroup] = []
        self.gone: set[SequenceGroup] = set()
        self.num_fetched = self.num_stored = self.num_clears = 0
        self.faults: list[str] = []
        self.loop = self._make_loop()

    def _make_loop(self) -> Loop:
        scheduler = make_scheduler(
            admission=self.admission, store=StoreCapacity(kind="memory"), **self.options
        )
        loop = make_loop(scheduler, depth=self.depth, kept=self.kept, step_s=self.step_s)
        assert loop.worker.store is not None
        loop.worker.store.endings = self._endings()
        loop.worker.store.heeds_cancels = self.rng.random() < 0.5
        return loop

    def _endings(self) -> Iterator[Ending]:
        """Half of the moves end well, soon or late; the others in part, or by an error."""
        while True:
            num_steps = self.rng.choice([0, 0, 1, 2, 5])
            if self.rng.random() < 0.5:
                yield Ending(num_steps)
            else:
                failed = self.rng.choice(["", "", "input/output error"])
                yield Ending(num_steps, self.rng.choice([0, 1, 2]), failed)

    @property
    def store(self) -> FakeStore:
        assert self.loop.worker.store is not None
        return self.loop.worker.store

    def add(self) -> None:
        prompt = [self.rng.randrange(3)] * self.rng.choice([5, 9, 13, 17])
        number = len(self.groups)
        group = make_request(prompt, max_tokens=self.rng.randrange(1, 5), arrival=float(number))
        self.content |= content_of(group, block_size=4)
        self.groups.append(group)
        self.admission.add(group)

    def step(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            self.loop.send()
            self.loop.answer()
            self.check()

    def abort(self) -> None:
        live = [group for group in self.groups if not group.is_finished and group not in self.gone]
        if live:
            self.gone.add(group := self.rng.choice(live))
            if group in self.admission:
                self.admission.remove(group)
            else:
                self.loop.scheduler.abort(group)

    def lose_worker(self) -> None:
        self._count()
        for group in self.loop.scheduler.evacuate():
            group.suspicion = None
            self.admission.add(group)
        self.loop = self._make_loop()

    def lose_blocks(self) -> None:
        for block_hash in sorted(self.kept)[:: self.rng.randrange(1, 4)]:
            del self.kept[block_hash]

    def reset(self) -> None:
        self.loop.scheduler.reset_prefix_cache()

    def clear(self) -> None:
        self.num_clears += 1
        self.loop.scheduler.clear_prefix_cache(None, self.faults.append)
        blocks = self.loop.scheduler.blocks
        assert not blocks.gpu.hashes
        assert not blocks.cpu.hashes

    def wait(self) -> None:
        self.loop.now += 1.0

    def drain(self) -> None:
        self.loop.scheduler.drain()
        self.check()
        self.lose_worker()

    def _count(self) -> None:
        self.num_fetched += self.store.num_fetched
        self.num_stored += self.store.num_stored

    def run(self) -> None:
        events = {
            self.add: 8,
            self.step: 12,
            self.abort: 1,
            self.lose_worker: 2,
            self.lose_blocks: 0.5,
            self.reset: 0.3,
            self.clear: 0.5,
            self.wait: 1,
            self.drain: 0.3,
        }
        for event in self.rng.choices(list(events), list(events.values()), k=NUM_EVENTS):
            event()
            self.check()
        self.loop.run()
        self.check()
        self._count()
        assert_all_free(self.loop)
        assert self.loop.scheduler.store is not None
        assert not self.loop.scheduler.store.moves
        assert len(self.faults) == self.num_clears, "a clear ends once, also if its worker is lost"
        for group in self.groups:
            if group not in self.gone:
                prompt = group.request.prompt_token_ids
                assert outputs(group) == [expected(prompt, num_tokens=group.max_tokens)]

    def check(self) -> None:
        self.loop.scheduler.check()
        self.loop.check_content(self.content)
        for block_hash, block in self.kept.items():
            assert block == self.content[block_hash], "the store has a wrong block"


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_whatever_the_store_does_output_is_exact_and_blocks_are_conserved(first: int) -> None:
    histories = [History(seed) for seed in range(first, first + 10)]
    for history in histories:
        history.run()
    assert sum(one.num_fetched for one in histories) > 20, "else this proves little"
    assert sum(one.num_stored for one in histories) > 20
