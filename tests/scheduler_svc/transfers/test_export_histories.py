"""Random histories of workers that read each other's blocks: exact output, and no block lost."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup, state_group
from signalbox_contract.model import StoreCapacity
from signalbox_scheduler.config import PeerIdentity
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.transfers.peer_registry import PeerRegistry
from tests.scheduler_svc.fake_store import Block, Ending, FakeStore
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    Loop,
    assert_all_free,
    content_of,
    is_moving,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
    retract,
)

NUM_EVENTS = 200
POOLS = ("gpu", "cpu")
GROUPS_OF_LAYERS = (
    (FULL_GROUP,),
    (FULL_GROUP, CacheGroup(kind="window", window=6)),
    (FULL_GROUP, CacheGroup(kind="state", state_blocks=3)),
)


class History:
    """What happens to three workers, each of which is lost now and then."""

    num_loops = 3

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.options: dict[str, Any] = {
            "num_gpu_blocks": rng.choice([9, 14]),
            "num_cpu_blocks": rng.choice([12, 20]),
            "max_num_seqs": rng.choice([1, 2]),
            "max_num_batched_tokens": rng.choice([8, 24]),
            "store": rng.choice([None, None, StoreCapacity(kind="memory")]),
        }
        self.groups_of_layers = GROUPS_OF_LAYERS[seed % len(GROUPS_OF_LAYERS)]
        self.depth, self.step_s = rng.choice([1, 2]), rng.choice([0.001, 0.01])
        self.admission, self.peers = AdmissionQueue(), PeerRegistry()
        self.kept: dict[bytes, Block] = {}
        self.tickets: dict[bytes, tuple[FakeStore, int]] = {}
        self.content: dict[bytes, Block] = {}
        self.groups: list[SequenceGroup] = []
        self.gone: set[SequenceGroup] = set()
        self.now = 0.0
        self.num_borrowed = self.num_workers = 0
        self.loops = [self._join() for _ in range(self.num_loops)]

    def _join(self) -> Loop:
        self.num_workers += 1
        identity = PeerIdentity(
            address=f"w{self.num_workers}", epoch=self.rng.getrandbits(64), kv_format="one"
        )
        num_groups = len(self.groups_of_layers)
        sizes = {f"num_{pool}_blocks": self.options[f"num_{pool}_blocks"] for pool in POOLS}
        scheduler = make_scheduler(
            admission=self.admission,
            identity=identity,
            peers=self.peers,
            groups=self.groups_of_layers,
            **self.options | {name: num_groups * size for name, size in sizes.items()},
        )
        loop = make_loop(scheduler, depth=self.depth, kept=self.kept, step_s=self.step_s)
        loop.queues_again = True
        store = loop.worker.store
        assert store is not None
        store.tickets = self.tickets
        store.endings = self._endings()
        store.heeds_cancels = self.rng.random() < 0.7
        return loop

    def _endings(self) -> Iterator[Ending]:
        """Most moves end well, soon or late; the others in part, or by an error."""
        while True:
            num_steps = self.rng.choice([1, 2, 3, 8])
            if self.rng.random() < 0.7:
                yield Ending(num_steps)
            else:
                failed = self.rng.choice(["", "", "UNAVAILABLE"])
                yield Ending(num_steps, self.rng.choice([0, 1, 2]), failed)

    def add(self) -> None:
        prompt = [self.rng.randrange(3)] * self.rng.choice([9, 13, 17])
        number = len(self.groups)
        group = make_request(prompt, max_tokens=self.rng.randrange(1, 5), arrival=float(number))
        self.learn(group)
        self.groups.append(group)
        self.admission.add(group)

    def learn(self, group: SequenceGroup) -> None:
        self.content |= content_of(group, block_size=4, groups=self.groups_of_layers)

    def step(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            self._step(self.rng.choice(self.loops))

    def _step(self, loop: Loop) -> bool:
        """Lets one worker plan and answer; returns whether there was something to do."""
        loop.now = max(loop.now, self.now)
        has_sent = loop.send()
        has_answered = loop.answer() is not None or loop.compile()
        self.now = loop.now
        self.check()
        return has_sent or has_answered

    def abort(self) -> None:
        live = [group for group in self.groups if not group.is_finished and group not in self.gone]
        if live:
            self.gone.add(group := self.rng.choice(live))
            if group in self.admission:
                self.admission.remove(group)
            for loop in self.loops:
                if loop.scheduler.holds(group):
                    loop.scheduler.abort(group)

    def fail_sequence(self) -> None:
        """What a request has computed turns out wrong, wherever it is on its way to."""
        running = [group for loop in self.loops for group in loop.scheduler.running]
        if running:
            group = self.rng.choice(running)
            self.gone.add(group)
            for loop in self.loops:
                if loop.scheduler.holds(group):
                    retract(loop, group.sequences[0])
                    loop.scheduler.abort(group)

    def fail_step(self) -> None:
        """The next step that computes takes its states with it, if there are any."""
        worker = self.rng.choice(self.loops).worker
        worker.fails_next = state_group(self.groups_of_layers) is not None

    def lose_worker(self) -> None:
        loop = self.loops.pop(self.rng.randrange(len(self.loops)))
        self._count(loop)
        self._leave(loop)
        for group in loop.scheduler.evacuate():
            group.suspicion = None
            self.admission.add(group)
        for ticket, (store, _) in list(self.tickets.items()):
            if store is loop.worker.store:
                del self.tickets[ticket]
        self.loops.append(self._join())

    def _leave(self, loop: Loop) -> None:
        self.peers.leave(loop.scheduler.state, self.now)

    def reset(self) -> None:
        for loop in self.loops:
            loop.scheduler.reset_prefix_cache()

    def clear(self) -> None:
        for loop in self.loops:
            loop.scheduler.clear_prefix_cache(None, lambda _: None)

    def wait(self) -> None:
        self.now += 1.0

    def drain(self) -> None:
        self.loops[0].scheduler.drain()
        self.check()

    def _count(self, loop: Loop) -> None:
        assert loop.worker.store is not None
        self.num_borrowed += loop.worker.store.num_borrowed

    @property
    def events(self) -> dict[Callable[[], None], float]:
        """What may happen, with weights."""
        return {
            self.add: 8,
            self.step: 20,
            self.abort: 1,
            self.fail_sequence: 0.5,
            self.fail_step: 0.5,
            self.lose_worker: 1,
            self.reset: 0.2,
            self.clear: 0.1,
            self.wait: 0.5,
            self.drain: 0.2,
        }

    def run(self) -> None:
        events = self.events
        for event in self.rng.choices(list(events), list(events.values()), k=NUM_EVENTS):
            event()
            self.check()
        if not any(loop.scheduler.is_accepting for loop in self.loops):
            self.lose_worker()
        for _ in range(3000):
            num_busy = sum(self._step(loop) for loop in self.loops)
            if not num_busy and not any(is_moving(loop.scheduler) for loop in self.loops):
                break
            self.now += 0.0 if num_busy else 0.1
        for loop in self.loops:
            self._count(loop)
            assert_all_free(loop)
            assert not is_moving(loop.scheduler)
        for group in self.groups:
            if group not in self.gone:
                self.assert_output(group)

    def assert_output(self, group: SequenceGroup) -> None:
        prompt = group.request.prompt_token_ids
        assert outputs(group) == [expected(prompt, num_tokens=group.max_tokens)]

    def check(self) -> None:
        for loop in self.loops:
            loop.scheduler.check()
            loop.check_content(self.content)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_whatever_happens_output_is_exact_and_blocks_are_conserved(first: int) -> None:
    histories = [History(seed) for seed in range(first, first + 10)]
    for history in histories:
        history.run()
    assert sum(one.num_borrowed for one in histories) > 20, "else this proves little"
