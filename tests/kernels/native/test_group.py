"""Ranks of one machine sum in their order, whatever their speed, and none waits when called off."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.group import CalledOff, Group, group_bytes
from signalbox_kernels.native import Isa
from signalbox_kernels.op_parameters import Norm
from signalbox_kernels.program import Program
from signalbox_kernels.structs import Epilogue, Row
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import FLOAT32, make_floats
from tests.kernels.native.programs import assert_same_bits, make_arrays, make_builder, make_program
from tests.kernels.native.reference import linear

HIDDEN, VOCAB, SIZE = 50, 97, 3
NUM_SUMS = 5
SLOT_BYTES = 40 * 64 * 4


def make_groups(size: int = SIZE, slot_bytes: int = SLOT_BYTES) -> list[Group]:
    """Returns the groups of ranks that map one file, which has no name."""
    with tempfile.TemporaryFile() as file:
        file.truncate(group_bytes(size, slot_bytes))
        return [
            Group(os.dup(file.fileno()), rank=rank, size=size, slot_bytes=slot_bytes)
            for rank in range(size)
        ]


def make_sums(group: Group, isa: Isa | None = None, num_threads: int = 1) -> Program:
    """Sums a buffer over the ranks, several times: buffer 0 is what it gives, 1 what it got."""
    builder = make_builder(FLOAT32)
    out, x = builder.buffer(HIDDEN, row=Row.FLOATS), builder.buffer(HIDDEN)
    shared = builder.buffer(HIDDEN, row=Row.SHARED)
    weight = np.eye(HIDDEN, dtype=np.float32)
    for number in range(NUM_SUMS):
        builder.linear(x, shared, weight, None, Epilogue.STORE)
        builder.sum(shared, out, adds=number > 0)
    return make_program(builder, isa, num_threads, group=group)


def make_head(group: Group, table: AnyArray) -> Program:
    """Looks tokens up in its part of the table, [VOCAB, HIDDEN], and scores them against it."""
    builder, at_most = make_builder(FLOAT32, vocab_size=VOCAB), -(-VOCAB // SIZE)
    out, shared = builder.buffer(HIDDEN, row=Row.FLOATS), builder.buffer(HIDDEN, row=Row.SHARED)
    normed, first = builder.buffer(HIDDEN), group.rank * at_most
    packed = builder.arena.pack(table[first : first + at_most])
    builder.embed(shared, packed, first_token=first)
    builder.sum(shared, out, adds=False)
    norm = Norm(weight=np.ones(HIDDEN, dtype=np.float32), eps=0)
    builder.norm(out, normed, norm, of_rows=True)
    builder.head(normed, packed, first_token=first)
    return make_program(builder, group=group)


def give(program: Program, rows: AnyArray) -> None:
    view = program.view(1, width=HIDDEN, num_tokens=len(rows), dtype=FLOAT32)
    view[:, :HIDDEN] = rows


def taken(program: Program, num_tokens: int) -> AnyArray:
    found: AnyArray = program.view(0, width=HIDDEN, num_tokens=num_tokens, dtype=FLOAT32)
    return found[:, :HIDDEN].copy()


def on_all(calls: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


@pytest.mark.parametrize("isa", ISAS, ids=str)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_all_ranks_get_the_sum_in_the_order_of_ranks(isa: Isa, num_threads: int) -> None:
    groups = make_groups()
    programs = [make_sums(group, isa, num_threads) for group in groups]
    for step, count in enumerate((1, 40, 7) * 20):
        shares = [make_floats(count, HIDDEN, seed=9 * step + rank) for rank in range(SIZE)]
        shares[0][0, :3] = [1e8, 1, -1e8]
        shares[1][0, :3] = [1, -1e8, 1e8]
        shares[2][0, :3] = [-1e8, 1e8, 1]
        for program, share in zip(programs, shares, strict=True):
            give(program, share)
        on_all([partial(program.run, make_arrays(count)) for program in programs])
        one = shares[0] + shares[1] + shares[2]
        expected = one
        for _ in range(NUM_SUMS - 1):
            expected = expected + one
        for program in programs:
            assert_same_bits(taken(program, count), expected)
    assert {group.num_joined for group in groups} == {60 * NUM_SUMS}


def test_tokens_are_looked_up_and_scored_where_they_lie() -> None:
    """A slot holds the logits of one row, and more rows than that are asked for."""
    table = make_floats(VOCAB, HIDDEN)
    programs = [make_head(group, table) for group in make_groups(slot_bytes=4096)]
    count = 16
    steps = [make_arrays(count, num_rows=count, vocab=VOCAB) for _ in programs]
    for arrays in steps:
        arrays.token_ids = np.arange(0, VOCAB, 6, dtype=np.int64)[:count]
        arrays.logits_of_row[::2] = np.arange(count // 2)
        arrays.suppressed = arrays.token_ids[:1].astype(np.int32)  # which is its own best
        arrays.suppressed_end[:] = 1
    calls = zip(programs, steps, strict=True)
    on_all([partial(program.run, arrays) for program, arrays in calls])
    rows = table[steps[0].token_ids]
    for program in programs:
        assert_same_bits(taken(program, count), rows)
    scores = linear(rows / np.sqrt((rows**2).mean(axis=1, keepdims=True)), table)
    np.testing.assert_allclose(steps[0].logits[: count // 2], scores[::2], rtol=1e-4, atol=1e-4)
    scores[0, steps[0].token_ids[0]] = -np.inf
    assert steps[0].argmax.tolist() == scores.argmax(axis=1).tolist()
    assert steps[0].is_finite.all()


def test_a_step_that_scores_no_token_exchanges_no_logits() -> None:
    groups = make_groups(slot_bytes=4096)
    programs = [make_head(group, make_floats(VOCAB, HIDDEN)) for group in groups]
    arrays = make_arrays(4, vocab=VOCAB)
    arrays.logits_of_row = np.full(1, 40, dtype=np.int32)[:0]  # what lies behind it is another's
    arrays.logits = np.zeros((64, VOCAB), dtype=np.float32)
    on_all([partial(program.run, arrays) for program in programs])
    assert {group.num_joined for group in groups} == {1}, "that of the sum"


def test_a_rank_that_is_called_off_waits_for_none() -> None:
    groups = make_groups(2)
    programs = [make_sums(group) for group in groups]
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[None] = pool.submit(programs[0].run, make_arrays(3))
        groups[1].call_off()
        with pytest.raises(CalledOff):
            waiting.result()
    for program in programs:
        with pytest.raises(CalledOff):
            program.run(make_arrays(3))


def test_a_step_larger_than_a_slot_is_refused_before_ranks_meet() -> None:
    (group,) = make_groups(1)
    with pytest.raises(MemoryError, match="max_num_batched_tokens"):
        make_sums(group).run(make_arrays(SLOT_BYTES // 64))
    assert group.num_joined == 0


def sum_in_process(path: Path, rank: int, num_steps: int) -> None:
    with path.open("r+b") as file:
        program = make_sums(Group(os.dup(file.fileno()), rank=rank, size=2, slot_bytes=SLOT_BYTES))
    for step in range(num_steps):
        give(program, np.full((2, HIDDEN), step + rank, dtype=np.float32))
        program.run(make_arrays(2))
        assert (taken(program, 2) == NUM_SUMS * (2 * step + 1)).all()


def test_processes_sum_and_a_killed_one_is_waited_for_until_the_others_are_called_off(
    tmp_path: Path,
) -> None:
    file = tmp_path / "memory"
    with file.open("w+b") as opened:
        opened.truncate(group_bytes(2, SLOT_BYTES))
        group = Group(os.dup(opened.fileno()), rank=0, size=2, slot_bytes=SLOT_BYTES)
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=sum_in_process, args=(file, 1, 1 << 30))
    child.start()
    program = make_sums(group)
    with ThreadPoolExecutor(1) as pool:
        for step in range(1000):
            if step == 999:
                child.kill()
                child.join()
            give(program, np.full((2, HIDDEN), step, dtype=np.float32))
            last = pool.submit(program.run, make_arrays(2))
            if step < 999:
                last.result()
                assert (taken(program, 2) == NUM_SUMS * (2 * step + 1)).all()
        group.call_off()
        with pytest.raises(CalledOff):
            last.result()
