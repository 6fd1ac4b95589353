"""Random histories of workers that migrate running groups: exact output, and no block lost."""

from collections.abc import Callable, Iterator

import pytest

from signalbox_contract.cache_groups import state_group
from signalbox_contract.request import BeamSearchParams
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.transfers.worker_migrations import WorkerMigrations
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from tests.scheduler_svc.beams import assert_found
from tests.scheduler_svc.fake_store import Ending
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import Loop, make_request, outputs, transfers
from tests.scheduler_svc.transfers.test_export_histories import History
from tests.scheduler_svc.watching import WorkerWatcher

GRAMMARS = [None, None, ("regex", "a"), ("regex", "b")]


class MigrationHistory(History):
    """What happens to workers whose groups go elsewhere in the middle of everything."""

    def __init__(self, seed: int) -> None:
        self.num_begun = self.num_out = self.num_aborted = 0
        self.has_beams = False
        self.watchers: dict[Scheduler, WorkerWatcher] = {}
        super().__init__(seed)

    def _join(self) -> Loop:
        self.options |= {"max_num_seqs": 6, "num_gpu_blocks": self.rng.choice([20, 40])}
        self.options["num_cpu_blocks"] = self.rng.choice([12, 20, 40])
        has_drafts = self.num_workers % 2 and not state_group(self.groups_of_layers)
        self.options["max_draft_tokens"] = 4 if has_drafts else 0
        loop = super()._join()
        loop.worker.draft_kinds = "gmobn"
        assert loop.worker.store is not None
        loop.worker.store.patience = 20
        self.watchers[loop.scheduler] = WorkerWatcher(loop.scheduler)
        return loop

    def add(self) -> None:
        rng = self.rng
        search = rng.choice([None, None, None, BeamSearchParams(width=2)])
        group = make_request(
            [rng.randrange(3)] * rng.choice([3, 9, 13, 17]),
            max_tokens=rng.choice([1, 8, 30, 60]),
            arrival=float(len(self.groups)),
            n=1 if search else rng.choice([1, 1, 2, 3]),
            beam_search=search,
            structured_output=None if search else rng.choice(GRAMMARS),
            tenant=rng.choice(["", "", "other"]),
        )
        if all(loop.scheduler.blocks.sizes.can_ever_hold(group) for loop in self.loops):
            self.has_beams |= search is not None
            if search is None:
                self.learn(group)
            self.groups.append(group)
            self.admission.add(group)

    def _endings(self) -> Iterator[Ending]:
        """Most rounds end well, else no migration would."""
        for ending in super()._endings():
            yield ending if self.rng.random() < 0.5 else Ending(self.rng.choice([1, 2]))

    def hand_over(self) -> None:
        source, destination = map(of, self.rng.sample(self.loops, 2))
        groups = self.rng.sample(source.queues.running, len(source.queues.running))
        self.num_begun += any(destination.reserve(one, source, self.now) for one in groups)

    def abort_on_its_way(self) -> None:
        """Aborts what is being migrated, in whatever state that is."""
        leaving = [group for loop in self.loops for group in of(loop).outgoing]
        if leaving:
            self.gone.add(group := self.rng.choice(leaving))
            for loop in self.loops:
                if loop.scheduler.holds(group):
                    loop.scheduler.abort(group)

    def stop(self) -> None:
        """Ends a branch at a stop string."""
        loop = self.rng.choice(self.loops)
        for group in loop.scheduler.running:
            seqs = [seq for seq in group.unfinished if seq.output_token_ids]
            if seqs and not group.awaits_answers:
                seq = self.rng.choice(seqs)
                keep = self.rng.randrange(1, len(seq.output_token_ids) + 1)
                loop.scheduler.stop_sequence(group, index=seq.branch, keep_tokens=keep)
                return

    def _count(self, loop: Loop) -> None:
        super()._count(loop)
        self.num_out += of(loop).num_out
        self.num_aborted += of(loop).num_aborted

    @property
    def events(self) -> dict[Callable[[], None], float]:
        rare = {self.abort_on_its_way: 0.7, self.stop: 0.5}
        return super().events | rare | {self.add: 4, self.hand_over: 12, self.drain: 0.2}

    def check(self) -> None:
        held = list(self.admission)
        for loop in self.loops:
            scheduler = loop.scheduler
            scheduler.check()
            self.watchers[scheduler].check()
            loop.check_content(self.content, knows_all=not self.has_beams)
            held += [*scheduler.running, *scheduler.swapped, *scheduler.loading]
        assert len(held) == len(set(held)), "a group is in two places"

    def assert_output(self, group: SequenceGroup) -> None:
        assert group.failure is None
        if group.request.beam_search is not None:
            assert_found(group)
            return
        prompt = group.request.prompt_token_ids
        for branch, tokens in enumerate(outputs(group)):
            assert tokens == expected(prompt, num_tokens=len(tokens), branch=branch)


def of(loop: Loop) -> WorkerMigrations:
    return transfers(loop.scheduler).migrations


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_whatever_happens_output_is_exact_and_blocks_are_conserved(first: int) -> None:
    histories = [MigrationHistory(seed) for seed in range(first, first + 10)]
    for history in histories:
        history.run()
    assert sum(one.num_out for one in histories) > 10, "else this proves little"
    assert sum(one.num_aborted for one in histories) > 20, "else this proves little"
