"""Two steps in flight: the tokens of one step at a time, and failures that stay where they are."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from signalbox_contract.errors import Aborted, Internal, InvalidArgument
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import TablePatch
from signalbox_worker.batch.batch import Batch, BatchOutput, Launched
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.builders import make_step
from tests.gpu_worker.device.recorded_graphs import GraphsOnCpu
from tests.gpu_worker.lease.steps_in_flight import (
    FILTERED,
    GREEDY,
    PENALISED,
    RANDOM,
    STARVED,
    Steps,
    decode,
    finish,
    make_lease,
    make_sequences,
    raise_out_of_memory,
)
from tests.gpu_worker.models.attention.device_attention import make_device_runner

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runner(tiny: Path) -> LocalRunner:
    return make_device_runner(tiny, GraphsOnCpu(), max_num_seqs=4)


def same_at_both_depths(runner: LocalRunner, drive: Callable[[Steps], None]) -> Steps:
    """Drives one step at a time, then two in flight, which say the same; returns the latter."""
    driven = []
    for depth in (1, 2):
        steps = Steps(make_lease(runner), depth)
        drive(steps)
        driven.append((steps.tokens(), steps))
        steps.lease.table.check()
    (expected, _), (tokens, steps) = driven
    assert tokens == expected
    return steps


@pytest.fixture
def fed(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of each launched batch were fed forward."""
    counts: list[int] = []
    launch = runner.launch

    def spy(batch: Batch) -> Launched:
        counts.append(0 if batch.fed_from is None else int((batch.fed_from >= 0).sum()))
        return launch(batch)

    monkeypatch.setattr(runner, "launch", spy)
    return counts


@pytest.mark.parametrize(
    ("params", "num_fed"),
    [
        ((GREEDY, RANDOM, GREEDY), [0, 3, 3, 3, 3, 3, 3, 3, 3]),
        ((GREEDY, FILTERED), [0, 0, 0, 0, 0, 0, 0, 0, 0]),  # PyTorch filters with waits
        ((RANDOM, PENALISED), [0, 0, 0, 0, 0, 0, 0, 0, 0]),  # the host must see what was drawn
    ],
)
def test_tokens_equal_those_of_one_step_at_a_time(
    params: tuple[SamplingParams, ...], num_fed: list[int], runner: LocalRunner, fed: list[int]
) -> None:
    def drive(steps: Steps) -> None:
        fed.clear()
        steps.send(new=make_sequences(*params))
        decode(steps, list(range(len(params))), 8)

    same_at_both_depths(runner, drive)
    assert fed == num_fed


def test_tokens_that_may_not_be_drawn_yet_wait_until_they_may(
    runner: LocalRunner, fed: list[int]
) -> None:
    def drive(steps: Steps) -> None:
        fed.clear()
        steps.send(new=make_sequences(STARVED, RANDOM))
        decode(steps, [0, 1], 9)

    tokens = same_at_both_depths(runner, drive).tokens()
    assert min(tokens[0][:6]) >= 40
    assert fed == [0] * 7 + [2] * 3


def test_branches_prefills_and_decodes_mix(runner: LocalRunner, fed: list[int]) -> None:
    """A prompt in chunks beside decodes, and branches of it, whose tokens the host copies."""

    def drive(steps: Steps) -> None:
        fed.clear()
        one, many = make_sequences(RANDOM, RANDOM)
        many = replace(many, num_samples=3, num_new_tokens=4)
        steps.send(new=[one])
        decode(steps, [0], 3)
        steps.send(running={0: 1}, new=[many])
        steps.send(running={0: 1, 1: len(many.token_ids) - 4})
        steps.hear()
        last = steps.results[-1]
        drawn = last.token_ids.array()[last.seq_ids.array() == 1].tolist()
        forks = [Fork(1, 10 + i, i, drawn[i]) for i in (1, 2)]
        patches = [TablePatch(10 + i, 0, [20 + 5 * i, 21 + 5 * i]) for i in (1, 2)]
        copied = np.array([5, 6, 5, 6], np.int32), np.array([25, 26, 30, 31], np.int32)
        steps.send(
            running={0: 1, 1: 1, 11: 1, 12: 1},
            forks=forks,
            patches=patches,
            copy=BlockMapping(*copied),
        )
        decode(steps, [0, 11, 1, 12], 5)

    tokens = same_at_both_depths(runner, drive).tokens()
    assert sum(count > 0 for count in fed) >= 8
    assert len({tuple(tokens[seq_id][-5:]) for seq_id in (1, 11, 12)}) == 3


def test_a_sequence_that_goes_while_it_is_under_way_leaves_no_token(runner: LocalRunner) -> None:
    steps = Steps(make_lease(runner), 3)
    steps.send(new=make_sequences(RANDOM, RANDOM))
    steps.send(running={0: 1, 1: 1})
    heir = make_sequences(GREEDY)[0]
    heir = replace(heir, seq_id=5, block_table=[30, 31])
    steps.send(running={1: 1}, finished=[0], new=[heir])
    table = steps.lease.table
    steps.hear()
    assert table.token_ids(5)[:-1] == heir.token_ids
    assert min(table.token_ids(1)) >= 0
    table.check()


def test_a_step_that_is_not_allowed_changes_nothing(runner: LocalRunner) -> None:
    steps = Steps(make_lease(runner), 2)
    steps.send(new=make_sequences(RANDOM))
    with pytest.raises(InvalidArgument, match="a sequence that this worker knows"):
        steps.lease.execute(make_step(2, running={0: 1, 77: 1}), arrived_ns=0)
    decode(steps, [0], 3)
    alone = Steps(make_lease(runner), 1)
    alone.send(new=make_sequences(RANDOM))
    decode(alone, [0], 3)
    assert steps.tokens() == alone.tokens()


def test_a_sequence_that_fails_under_way_fails_alone_and_stays_failed(runner: LocalRunner) -> None:
    steps = Steps(make_lease(runner), 2)
    steps.send(new=make_sequences(GREEDY, RANDOM))
    steps.hear()
    runner.pools.gpu_pool[0] = 0xFF  # NaN in the first block of sequence 0
    decode(steps, [0, 1], 3)
    steps.hear()
    failures = [[*result.failures] for result in steps.results]
    assert failures == [[], [0], [0], [0]]
    assert [len(result.token_ids) for result in steps.results] == [2, 1, 1, 1]
    healthy = Steps(make_lease(runner), 1)
    healthy.send(new=make_sequences(GREEDY, RANDOM))
    decode(healthy, [0, 1], 3)
    assert steps.tokens()[1] == healthy.tokens()[1]


def test_a_step_that_cannot_be_launched_is_computed_in_parts(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = runner.execute

    def small(batch: Batch) -> BatchOutput:
        if len(batch.token_ids) > 1:
            raise MemoryError("too large")
        assert batch.fed_from is None
        return execute(batch)

    def drive(steps: Steps) -> None:
        steps.send(new=make_sequences(GREEDY, RANDOM))
        decode(steps, [0, 1], 2)
        with monkeypatch.context() as patched:
            patched.setattr(runner, "launch", raise_out_of_memory)
            patched.setattr(runner, "execute", small)
            decode(steps, [0, 1], 2)
        decode(steps, [0, 1], 2)
        assert not any(result.failures for result in steps.results)

    same_at_both_depths(runner, drive)


def test_an_error_of_the_device_ends_the_lease_for_all_steps_in_flight(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost:
        can_feed = True

        def wait(self) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        def samples(self) -> BatchOutput:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    lease = make_lease(runner)
    first = lease.execute(make_step(1, new=make_sequences(GREEDY)), arrived_ns=0)
    assert len(finish(first).token_ids) == 1
    monkeypatch.setattr(runner, "launch", lambda batch: Lost())
    second = lease.execute(make_step(2, running={0: 1}), arrived_ns=0)
    third = lease.execute(make_step(3, running={0: 1}), arrived_ns=0)
    for outcome in (second, third):
        with pytest.raises(Internal, match="the cache is lost"):
            finish(outcome)
    with pytest.raises(Aborted, match="has ended"):
        lease.execute(make_step(4, running={0: 1}), arrived_ns=0)


def test_a_step_with_logits_to_return_is_waited_for(runner: LocalRunner, fed: list[int]) -> None:
    def drive(steps: Steps) -> None:
        fed.clear()
        one, other = make_sequences(GREEDY, RANDOM)
        steps.send(new=[replace(one, returns_logits=True), other])
        decode(steps, [0, 1], 4)
        steps.send(running={1: 1}, finished=[0])
        steps.send(running={1: 1})

    steps = same_at_both_depths(runner, drive)
    *with_logits, _, last = steps.results
    for result in with_logits:
        assert result.draw_logits is not None
        mine, none = result.draw_logits.tolist()
        assert math.isfinite(mine)
        assert math.isnan(none)
    assert last.draw_logits is None
    assert fed == [0, 0, 0, 0, 0, 0, 1]


def test_steps_without_tokens_pass_those_under_way(runner: LocalRunner) -> None:
    steps = Steps(make_lease(runner), 3)
    steps.send(new=make_sequences(RANDOM))
    steps.send()
    steps.send(running={0: 1})
    tokens = steps.tokens()
    assert [len(result.token_ids) for result in steps.results] == [1, 0, 1]
    assert len(tokens[0]) == 2
