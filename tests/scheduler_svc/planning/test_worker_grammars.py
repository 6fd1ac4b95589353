"""A request waits for its structured output before it has a place in a step, wherever it goes."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from signalbox_contract.errors import Code
from signalbox_contract.structured_output.grammar_cost import GrammarCost
from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from tests.scheduler_svc.fake_worker import FakeWorker, expected
from tests.scheduler_svc.make import Loop, make_request, make_scheduler, outputs

MB = 1 << 20
MEMORY = 64 * MB
BLOCK_SIZE = 4


def make_group(
    index: int, *, cpu_ms: int = 1, peak_mb: int = 0, of: int | None = None, **fields: Any
) -> SequenceGroup:
    """A request with a structured output of its own, or that of request `of`."""
    number = index if of is None else of
    return make_request(
        [1 + index % 7, 2, 3, 4, 5],
        arrival=float(index),
        structured_output=("regex", f"a{{{number}}}"),
        grammar_cost=GrammarCost(cpu_ms * 1_000_000, peak_mb * MB),
        **fields,
    )


@dataclass(slots=True)
class CompilingLoop(Loop):
    """A worker that takes some rounds to compile."""

    asked: list[Preparation] = field(default_factory=list)
    rounds: int = 3
    faults: dict[str, str] = field(default_factory=dict)
    compiled: set[tuple[str, ...]] = field(default_factory=set)
    rounds_left: int = 0

    def round(self) -> bool:
        """Plans, executes and compiles as far as one round goes; False if all is still."""
        was_preparing, moved = self.preparing, False
        while self.send():
            moved = True
            for seq in self.scheduler.in_flight[-1].seqs:
                needed = seq.group.params.structured_output
                assert needed is None or needed in self.compiled, "a step waits for a compilation"
        if self.preparing is not None and self.preparing is not was_preparing:
            self.asked.append(self.preparing)
            self.compiled -= set(self.preparing.forgotten)
            self.rounds_left = self.rounds
        moved |= self.answer() is not None
        if self.preparing is not None:
            self._go_on_compiling(self.preparing.constraint)
            moved = True
        self.scheduler.check()
        return moved

    def _go_on_compiling(self, constraint: tuple[str, ...]) -> None:
        self.rounds_left -= 1
        if not self.rounds_left:
            fault = self.faults.get(constraint[1], "")
            if not fault:
                self.compiled.add(constraint)
            self.compile(fault=fault)

    def finish(self, *, max_rounds: int = 5000) -> None:
        for _ in range(max_rounds):
            if not self.round():
                return
        raise AssertionError(f"still busy after {max_rounds} rounds")


def make_loop(admission: AdmissionQueue | None = None, **fields: Any) -> CompilingLoop:
    scheduler = make_scheduler(
        admission=admission, **{"grammar_bytes": MEMORY, "num_gpu_blocks": 256, **fields}
    )
    return CompilingLoop(scheduler, FakeWorker(block_size=BLOCK_SIZE))


def submit(loop: Loop, *groups: SequenceGroup) -> None:
    for group in groups:
        loop.scheduler.admission.add(group)


def check_outputs(*groups: SequenceGroup) -> None:
    for group in groups:
        assert outputs(group) == [
            expected(group.request.prompt_token_ids, num_tokens=group.max_tokens, branch=branch)
            for branch in range(group.request.num_sequences)
        ], group.request_id


def test_others_go_on_while_a_structured_output_is_compiled() -> None:
    loop = make_loop()
    loop.rounds = 6
    plain = make_request([3, 4, 5], arrival=1.0, max_tokens=20)
    waiting = make_group(2)
    submit(loop, waiting, plain)
    for _ in range(5):
        assert loop.round()
    assert plain.sequences[0].output_token_ids, "who needs no structured output went first"
    assert not waiting.has_started
    loop.finish()
    check_outputs(plain, waiting)


def test_64_that_cost_much_wait_within_the_memory_and_all_end() -> None:
    loop = make_loop()
    groups = [make_group(i, cpu_ms=1000, peak_mb=8) for i in range(64)]  # 16 MB each, with growth
    submit(loop, *groups)
    most = 0
    while loop.round():
        most = max(most, loop.scheduler.grammars.num_bytes)
    assert most == MEMORY
    assert len(loop.asked) == 64
    check_outputs(*groups)


def test_one_that_exceeds_the_memory_alone_is_alone() -> None:
    loop = make_loop()
    groups = [make_group(i, peak_mb=100) for i in range(3)]
    submit(loop, *groups)
    loop.finish()
    check_outputs(*groups)


def test_the_same_structured_output_is_compiled_once() -> None:
    loop = make_loop()
    groups = [make_group(i, of=7) for i in range(20)]
    submit(loop, *groups)
    loop.finish()
    assert len(loop.asked) == 1
    check_outputs(*groups)


@pytest.mark.parametrize("named_by", ["tenant", "payer"])
def test_a_cheap_one_goes_before_costly_ones_and_a_payer_delays_another_by_one(
    named_by: str,
) -> None:
    loop = make_loop(grammar_bytes=1 << 50)
    bombs = [make_group(i, cpu_ms=1000, **{named_by: "bomber"}) for i in range(40)]
    submit(loop, *bombs)
    loop.round()
    cheap = make_group(50, cpu_ms=2, **{named_by: "bomber"})
    dear = make_group(51, cpu_ms=1000, **{named_by: "honest"})
    submit(loop, cheap, dear)
    loop.finish()
    constraints = [one.constraint for one in loop.asked]
    assert constraints.index(("regex", "a{51}")) == 1
    assert constraints.index(("regex", "a{50}")) == 2
    check_outputs(*bombs, cheap, dear)


@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_preemption_and_forks_need_no_second_compilation(mode: PreemptionMode) -> None:
    loop = make_loop(num_gpu_blocks=14, num_cpu_blocks=20, mode=mode)
    groups = [make_group(i, max_tokens=20, n=1 + i % 2) for i in range(4)]
    submit(loop, *groups)
    loop.finish()
    assert loop.scheduler.preemption.num_preemptions > 0
    assert len(loop.asked) == len(groups)
    check_outputs(*groups)


@pytest.mark.parametrize("when_lost", [1, 2, 5, 9, 14])
def test_a_request_that_moves_waits_for_its_structured_output_there(when_lost: int) -> None:
    admission = AdmissionQueue()
    first = make_loop(admission)
    groups = [make_group(i, of=i % 3, max_tokens=12, n=1 + i % 2) for i in range(6)]
    submit(first, *groups)
    for _ in range(when_lost):
        first.round()
    second = make_loop(admission)
    move(first.scheduler, admission)
    admission.check()
    second.finish()
    assert len(second.asked) == 3
    check_outputs(*groups)


def move(scheduler: Scheduler, admission: AdmissionQueue) -> None:
    """Loses a worker."""
    for group in scheduler.evacuate():
        admission.add(group)


def test_two_workers_share_what_is_to_be_compiled() -> None:
    admission = AdmissionQueue()
    loops = [make_loop(admission), make_loop(admission)]
    groups = [make_group(i, cpu_ms=1000) for i in range(10)]
    submit(loops[0], *groups)
    while sum(loop.round() for loop in loops):
        pass
    assert max(len(loop.asked) for loop in loops) <= 6
    check_outputs(*groups)


def test_what_cannot_be_compiled_fails_and_is_asked_for_again_next_time() -> None:
    loop = make_loop()
    loop.faults["a{1}"] = "the parser is confused"
    bad, good = [make_group(1), make_group(11, of=1)], make_group(2)
    submit(loop, *bad, good)
    loop.finish()
    for group in bad:
        assert group.failure is not None
        assert group.failure.code is Code.FAILED_PRECONDITION
        assert "cannot be compiled: the parser is confused" in group.failure.message
    check_outputs(good)
    loop.faults.clear()
    again = make_group(12, of=1)
    submit(loop, again)
    loop.finish()
    check_outputs(again)


def test_one_that_ends_while_it_waits_is_forgotten() -> None:
    loop = make_loop()
    groups = [make_group(i) for i in range(3)]
    submit(loop, *groups)
    loop.round()
    for group in groups[:2]:  # of the first, which is being compiled, too
        loop.scheduler.admission.remove(group)
    loop.finish()
    assert len(loop.asked) == 2
    assert not loop.scheduler.admission
    check_outputs(groups[2])
