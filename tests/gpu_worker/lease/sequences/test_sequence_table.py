"""What a step does to the worker's sequences, and that a refused step does nothing."""

from dataclasses import replace

import numpy as np
import pytest

from signalbox_contract import columns
from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import NewSequence, Step, TablePatch
from signalbox_contract.step_result import StepResult
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.sequence_failures import sequence_failure
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.runner.loading.byte_tokenizer import END_OF_SEQUENCE_ID
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.gpu_worker.builders import make_mapping, make_new, make_runner, make_step, make_table
from tests.simulated_model import expected_tokens

PROMPT = [5, 6, 7, 8, 9, 10]


def draw(batch: Batch, *tokens: int, failed: dict[int, str] | None = None) -> BatchOutput:
    assert len(tokens) == len(batch.rows.seq_ids)
    return BatchOutput(token_ids=np.array(tokens, dtype=np.int32), failed=failed or {})


def advance(table: SequenceTable, step: Step, *tokens: int) -> StepResult:
    return table.append_tokens(draw(table.apply(step), *tokens))


def make_started(**overrides: object) -> SequenceTable:
    """Builds a table that knows sequence 1: PROMPT computed in blocks 3 and 1, token 20 drawn."""
    table = make_table(make_runner())
    advance(table, make_step(new=[make_new(1, PROMPT, [3, 1])]), 20)
    return table


def test_a_prompt_is_packed_with_its_slots_and_draws_one_token() -> None:
    table = make_table(make_runner())
    batch = table.apply(make_step(new=[make_new(1, PROMPT, [3, 1])]))
    assert batch.token_ids.tolist() == PROMPT
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.slot_mapping.tolist() == [12, 13, 14, 15, 4, 5]
    assert batch.query_start.tolist() == [0, 6]
    assert batch.context_lens.tolist() == [6]
    assert batch.block_tables.tolist() == [[3, 1]]
    assert batch.rows.token_index.tolist() == [5]
    assert batch.rows.position.tolist() == [6]
    outcome = table.append_tokens(draw(batch, 20))
    assert (outcome.seq_ids.tolist(), outcome.token_ids.tolist()) == ([1], [20])
    assert table.token_ids(1) == [*PROMPT, 20]
    table.check()


GROUPS = (FULL_GROUP, CacheGroup(kind="window", window=3))


def test_a_token_has_a_slot_in_a_block_of_each_group() -> None:
    table = make_table(make_runner(groups=GROUPS))
    batch = table.apply(make_step(new=[make_new(1, PROMPT, [3, 9, 1, 8], num_new_tokens=5)]))
    assert batch.slot_mapping.tolist() == [[12, 36], [13, 37], [14, 38], [15, 39], [4, 32]]
    assert batch.block_tables.tolist() == [[3, 9, 1, 8]]
    table.append_tokens(draw(batch))
    batch = table.apply(make_step(2, running={1: 1}))
    assert batch.slot_mapping.tolist() == [[5, 33]]
    table.append_tokens(draw(batch, 20))
    with pytest.raises(InvalidArgument, match="room for 9 tokens"):
        for _ in range(3):
            advance(table, make_step(3, running={1: 1}), 20)
    batch = table.apply(make_step(5, running={1: 1}, patches=[TablePatch(1, 4, [2, 7])]))
    assert batch.block_tables.tolist() == [[3, 9, 1, 8, 2, 7]]


@pytest.mark.parametrize(
    ("blocks", "is_taken"),
    [
        ([3, -1, 1, 8], True),  # the window of position 6 begins at position 4
        ([3, -1, 1, -1], False),
        ([-1, 9, 1, 8], False),
    ],
)
def test_a_window_alone_may_lack_blocks_that_the_next_token_does_not_see(
    blocks: list[int], is_taken: bool
) -> None:
    table = make_table(make_runner(groups=GROUPS))
    step = make_step(new=[make_new(1, [*PROMPT, 20], blocks, num_computed_tokens=6)])
    if is_taken:
        assert table.apply(step).slot_mapping.tolist() == [[6, 34]]
        return
    with pytest.raises(InvalidArgument, match="blocks of group"):
        table.apply(step)
    table.check()


def test_a_drawn_token_is_fed_forward() -> None:
    table = make_started()
    batch = table.apply(make_step(2, running={1: 1}))
    assert batch.token_ids.tolist() == [20]
    assert batch.positions.tolist() == [6]
    assert batch.slot_mapping.tolist() == [6]
    assert batch.rows.position.tolist() == [7]


def test_only_the_last_chunk_of_a_prompt_draws() -> None:
    table = make_table(make_runner())
    batch = table.apply(make_step(new=[make_new(1, PROMPT, [0, 1], num_new_tokens=4)]))
    assert batch.rows.seq_ids.tolist() == []
    table.append_tokens(draw(batch))
    batch = table.apply(make_step(2, running={1: 2}))
    assert batch.token_ids.tolist() == [9, 10]
    assert batch.rows.token_index.tolist() == [1]


def test_decodes_and_prefills_mix_in_one_batch() -> None:
    table = make_started()
    batch = table.apply(make_step(2, running={1: 1}, new=[make_new(2, [1, 2, 3], [0])]))
    assert batch.token_ids.tolist() == [20, 1, 2, 3]
    assert batch.query_start.tolist() == [0, 1, 4]
    assert batch.block_tables.tolist() == [[3, 1], [0, 0]]
    outcome = table.append_tokens(draw(batch, 21, 4))
    assert outcome.seq_ids.tolist() == [1, 2]
    assert table.token_ids(2) == [1, 2, 3, 4]


def test_a_table_is_padded_with_zeros_even_in_a_row_that_was_used() -> None:
    table = make_started()
    advance(table, make_step(2, finished=[1], new=[make_new(2, [1], [9])]), 2)
    for seq_id in range(3, 10):  # takes every row in turn
        new = [make_new(seq_id, PROMPT, [7, 8]), make_new(100 + seq_id, [1], [9])]
        batch = table.apply(make_step(new=new))
        assert batch.block_tables.tolist() == [[7, 8], [9, 0]]
        table.append_tokens(draw(batch, 1, 1))
        advance(table, make_step(finished=[seq_id, 100 + seq_id]))
    table.check()


def test_several_samples_at_the_end_of_the_prompt_are_branches() -> None:
    table = make_table(make_runner())
    params = SamplingParams(temperature=0.5, seed=(1 << 64) - 1)
    new = make_new(1, PROMPT, [0, 1], branch=0, num_samples=3, params=params)
    batch = table.apply(make_step(new=[new, make_new(2, [1], [2])]))
    assert batch.rows.seq_ids.tolist() == [1, 1, 1, 2]
    assert batch.rows.branch.tolist() == [0, 1, 2, 0]
    assert batch.rows.token_index.tolist() == [5, 5, 5, 6]
    assert batch.rows.seed.tolist() == [(1 << 64) - 1] * 3 + [0]
    table.append_tokens(draw(batch, 20, 21, 22, 9))
    assert table.token_ids(1) == [*PROMPT, 20]
    batch = table.apply(make_step(2, running={1: 1}))
    assert batch.rows.branch.tolist() == [0]  # later tokens are drawn once


def test_a_prompt_without_samples_is_computed_and_draws_nothing() -> None:
    table = make_table(make_runner())
    params = SamplingParams()
    new = [
        make_new(1, PROMPT, [0, 1], num_samples=0, params=params),
        make_new(2, [1], [2], num_samples=2, params=params),
        make_new(3, [1], [3], num_samples=0, params=params),
    ]
    batch = table.apply(make_step(new=new))
    assert batch.query_start.tolist() == [0, 6, 7, 8]
    assert batch.rows.seq_ids.tolist() == [2, 2]
    assert batch.rows.branch.tolist() == [0, 1]
    table.append_tokens(draw(batch, 20, 21))
    advance(table, make_step(2, finished=[1, 3], running={2: 1}), 22)
    table.check()


def test_forks_share_the_blocks_and_take_their_own_token() -> None:
    table = make_started()
    forks = [Fork(parent=1, child=2, branch=1, token_id=21)]
    patches = [TablePatch(2, 1, [4])]  # copy-on-write of the block that both write to
    batch = table.apply(make_step(2, running={1: 1, 2: 1}, forks=forks, patches=patches))
    assert batch.token_ids.tolist() == [20, 21]
    assert batch.block_tables.tolist() == [[3, 1], [3, 4]]
    assert batch.rows.branch.tolist() == [0, 1]
    table.check()


def test_a_child_that_is_its_parent_replaces_the_last_token() -> None:
    table = make_started()
    forks = [Fork(1, 1, 0, 30), Fork(1, 2, 1, 31)]
    batch = table.apply(make_step(2, running={1: 1, 2: 1}, forks=forks))
    assert batch.token_ids.tolist() == [30, 31]
    assert table.token_ids(2) == [*PROMPT, 31]
    table.check()


def test_patches_append_and_replace_in_order() -> None:
    table = make_started()
    patches = [
        TablePatch(1, 2, [8, 9]),
        TablePatch(1, 1, [7]),
        TablePatch(1, 2, [6]),
    ]
    batch = table.apply(make_step(2, running={1: 1}, patches=patches))
    assert batch.block_tables.tolist() == [[3, 7]]
    table.append_tokens(draw(batch, 21))
    for token in (22, 23, 24):
        batch = table.apply(make_step(3, running={1: 1}))
        table.append_tokens(draw(batch, token))
    assert batch.block_tables.tolist() == [[3, 7, 6]]


def test_a_sequence_resumes_with_all_its_tokens() -> None:
    table = make_started()
    advance(table, make_step(2, finished=[1]))
    assert 1 not in table
    swapped = make_new(1, [*PROMPT, 20], [5, 2], num_prompt_tokens=6, num_computed_tokens=6)
    batch = table.apply(make_step(3, new=[swapped]))
    assert batch.token_ids.tolist() == [20]
    assert batch.slot_mapping.tolist() == [10]
    table.append_tokens(draw(batch, 21))
    advance(table, make_step(4, finished=[1]))
    recomputed = make_new(1, [*PROMPT, 20, 21], [5, 2], num_prompt_tokens=6)
    assert table.apply(make_step(5, new=[recomputed])).token_ids.tolist() == [*PROMPT, 20, 21]


def test_stop_tokens_are_suppressed_until_min_tokens() -> None:
    table = make_table(make_runner())
    params = SamplingParams(min_tokens=2, stop_token_ids=(3, 4))
    seen = []
    batch = table.apply(make_step(new=[make_new(1, PROMPT, [0, 1, 2], params=params)]))
    for token in (20, 21, 22):
        seen.append(batch.rows.suppressed)
        table.append_tokens(draw(batch, token))
        batch = table.apply(make_step(2, running={1: 1}))
    ends = [3, 4, END_OF_SEQUENCE_ID]
    assert [None if runs is None else runs.token_ids.tolist() for runs in seen] == [
        ends,
        ends,
        None,
    ]


@pytest.mark.parametrize("stops", [(), (3, END_OF_SEQUENCE_ID)])
def test_the_models_end_is_suppressed_until_min_tokens_though_it_is_ignored(
    stops: tuple[int, ...],
) -> None:
    table = make_table(make_runner())
    params = SamplingParams(min_tokens=1, stop_token_ids=stops)
    batch = table.apply(make_step(new=[make_new(1, PROMPT, [0, 1, 2], params=params)]))
    assert batch.rows.suppressed is not None
    assert set(batch.rows.suppressed.token_ids.tolist()) == {*stops, END_OF_SEQUENCE_ID}
    table.append_tokens(draw(batch, 20))
    assert table.apply(make_step(2, running={1: 1})).rows.suppressed is None


def test_logprobs_are_asked_for_by_row() -> None:
    table = make_table(make_runner())
    asks = make_new(2, [1], [1], params=SamplingParams(num_logprobs=0))
    batch = table.apply(make_step(new=[make_new(1, [1], [0]), asks]))
    assert batch.rows.num_logprobs.tolist() == [-1, 0]


def test_one_sequences_failure_leaves_the_others() -> None:
    table = make_table(make_runner())
    batch = table.apply(make_step(new=[make_new(s, [s], [s]) for s in (1, 2, 3)]))
    samples = draw(batch, 10, 11, 12, failed={1: "not finite"})
    samples.logprobs = [Logprobs(row, -1.0, 1, [], []) for row in (1, 2)]
    outcome = table.append_tokens(samples)
    assert outcome.seq_ids.tolist() == [1, 3]
    assert outcome.token_ids.tolist() == [10, 12]
    assert list(outcome.logprobs) == [1]
    assert outcome.failures == {2: sequence_failure("not finite")}
    # The next step was sent before that was known: it fails again, alone.
    outcome = advance(table, make_step(2, running={1: 1, 2: 1, 3: 1}), 20, 22)
    assert outcome.seq_ids.tolist() == [1, 3]
    assert outcome.failures == {2: sequence_failure("not finite")}
    advance(table, make_step(3, finished=[2]))
    table.check()


def test_a_sequence_that_could_not_be_computed_fails_without_a_draw() -> None:
    table = make_started()
    table.apply(make_step(2, new=[make_new(2, [1, 2], [0], num_new_tokens=1)], running={1: 1}))
    samples = BatchOutput(
        token_ids=np.array([20], dtype=np.int32), failed_seqs={1: "kernel raised"}
    )
    outcome = table.append_tokens(samples)
    assert {*outcome.seq_ids.tolist(), *outcome.failures} == {1, 2}
    assert len(outcome.failures) == 1
    table.check()


def test_more_sequences_than_one_step_holds_may_be_known() -> None:
    table = make_table(make_runner(max_num_seqs=2))
    for seq_id in range(1, 12):
        advance(table, make_step(seq_id, new=[make_new(seq_id, [seq_id, 2], [0])]), 100 + seq_id)
    assert len(table) == 11
    assert [table.token_ids(s) for s in (1, 11)] == [[1, 2, 101], [11, 2, 111]]
    table.check()


GOOD = make_new(2, [1, 2, 3], [4])
MAP = make_mapping
REFUSED: dict[str, Step] = {
    "unknown running": make_step(running={9: 1}),
    "unknown finished": make_step(finished=[9]),
    "finished twice": make_step(finished=[1, 1]),
    "finished and running": make_step(finished=[1], running={1: 1}),
    "unknown parent": make_step(forks=[Fork(9, 2, 1, 3)]),
    "child known": make_step(new=[], forks=[Fork(1, 2, 1, 3), Fork(1, 2, 1, 3)]),
    "fork's token past the vocabulary": make_step(forks=[Fork(1, 2, 1, 512)]),
    "fork's child negative": make_step(forks=[Fork(1, -2, 1, 5)]),
    "fork's branch negative": make_step(forks=[Fork(1, 2, -1, 5)]),
    "new is known": make_step(new=[make_new(1, [1], [0])]),
    "new twice": make_step(new=[GOOD, GOOD]),
    "no tokens": make_step(new=[replace(GOOD, token_ids=[])]),
    "longer than the model": make_step(
        new=[make_new(2, [1] * 65, list(range(16)), num_new_tokens=8)]
    ),
    "token past the vocabulary": make_step(new=[replace(GOOD, token_ids=[1, 2, 512])]),
    "no prompt": make_step(new=[replace(GOOD, num_prompt_tokens=0)]),
    "prompt longer than tokens": make_step(new=[replace(GOOD, num_prompt_tokens=4)]),
    "nothing to compute": make_step(new=[replace(GOOD, num_new_tokens=0)]),
    "more to compute than known": make_step(new=[replace(GOOD, num_new_tokens=4)]),
    "computed all": make_step(new=[replace(GOOD, num_computed_tokens=3)]),
    "samples without end": make_step(new=[replace(GOOD, num_samples=1 << 31)]),
    "block past the pool": make_step(new=[replace(GOOD, block_table=[16])]),
    "block negative": make_step(new=[replace(GOOD, block_table=[-1])]),
    "table too short": make_step(new=[make_new(2, [1] * 5, [0])]),
    "table empty": make_step(new=[replace(GOOD, block_table=[])]),
    "table too long": make_step(new=[replace(GOOD, block_table=[0] * 17)]),
    "temperature not a number": make_step(
        new=[replace(GOOD, params=SamplingParams(temperature=float("nan")))]
    ),
    "patch of unknown": make_step(patches=[TablePatch(9, 0, [1])]),
    "patch leaves a gap": make_step(patches=[TablePatch(1, 3, [1])]),
    "patch before the table": make_step(patches=[TablePatch(1, -1, [1])]),
    "patch past the pool": make_step(patches=[TablePatch(1, 2, [16])]),
    "patch past the longest table": make_step(patches=[TablePatch(1, 2, [1] * 15)]),
    "running twice": replace(
        make_step(),
        running_seq_ids=columns.int64s([1, 1]),
        running_num_new_tokens=columns.int32s([1, 1]),
    ),
    "running and new": make_step(running={2: 1}, new=[GOOD]),
    "running computes nothing": make_step(running={1: 0}),
    "running computes less than nothing": make_step(running={1: -1}),
    "running computes more than known": make_step(running={1: 2}),
    "too many sequences": make_step(new=[make_new(s, [1], [0]) for s in range(2, 7)]),
    "too many tokens": make_step(new=[make_new(2, [1] * 33, list(range(9)))]),
}


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_a_refused_step_changes_nothing(step: Step) -> None:
    table = make_started()
    # What is right in the same step must not happen either.
    also: list[NewSequence] = [make_new(50, [1], [0])] if len(step.new) < 3 else []
    step = replace(step, new=[*also, *step.new], patches=[TablePatch(1, 1, [9]), *step.patches])
    if 1 in step.finished.tolist():
        step = replace(step, patches=[])
    with pytest.raises(InvalidArgument):
        table.apply(step)
    table.check()
    assert (len(table), table.token_ids(1)) == (1, [*PROMPT, 20])
    batch = table.apply(make_step(2, running={1: 1}))
    assert batch.token_ids.tolist() == [20]
    assert batch.block_tables.tolist() == [[3, 1]]


def test_a_running_sequence_needs_room_for_its_new_tokens() -> None:
    table = make_started()
    for token in (21, 22):
        advance(table, make_step(2, running={1: 1}), token)
    with pytest.raises(InvalidArgument, match="room for 9 tokens"):
        table.apply(make_step(3, running={1: 1}))
    table.apply(make_step(3, running={1: 1}, patches=[TablePatch(1, 2, [0])]))


def test_nothing_is_computed_past_the_longest_sequence() -> None:
    table = make_table(make_runner(max_model_len=6))
    advance(table, make_step(new=[make_new(1, PROMPT, [0, 1])]), 20)
    with pytest.raises(InvalidArgument, match="num_new_tokens"):
        table.apply(make_step(2, running={1: 1}))


def test_a_prompt_that_is_not_computed_cannot_be_forked() -> None:
    table = make_table(make_runner())
    advance(table, make_step(new=[make_new(1, PROMPT, [0, 1], num_new_tokens=4)]))
    with pytest.raises(InvalidArgument, match="prompt is computed"):
        table.apply(make_step(2, forks=[Fork(1, 2, 1, 3)]))


def run_all(runner: SimulatedRunner, table: SequenceTable, step: Step) -> StepResult:
    batch = table.apply(step)
    runner.apply(step)
    return table.append_tokens(runner.execute(batch))


def test_forks_swap_and_resume_give_the_tokens_of_an_undisturbed_run() -> None:
    runner = make_runner()
    table = make_table(runner)
    params = SamplingParams(temperature=1.0, seed=11)
    new = make_new(1, PROMPT, [3, 1], num_samples=2, params=params)
    first = run_all(runner, table, make_step(new=[new])).token_ids.tolist()
    run_all(
        runner,
        table,
        make_step(
            running={1: 1, 2: 1},
            forks=[Fork(1, 2, 1, first[1])],
            patches=[TablePatch(2, 1, [4])],
            copy=MAP({1: 4}),
        ),
    )
    child = table.token_ids(2)
    run_all(runner, table, make_step(finished=[2], swap_out=MAP({4: 0, 3: 1}), running={1: 1}))
    run_all(runner, table, make_step(new=[make_new(3, [1] * 9, [3, 4, 2])]))  # uses the old blocks
    resumed = make_new(
        2,
        child,
        [7, 8],
        branch=1,
        num_prompt_tokens=6,
        num_computed_tokens=7,
        params=params,
    )
    run_all(runner, table, make_step(new=[resumed], swap_in=MAP({0: 8, 1: 7})))
    for seq_id, branch in ((1, 0), (2, 1)):
        expected = expected_tokens(PROMPT, num_tokens=3, temperature=1.0, seed=11, branch=branch)
        assert table.token_ids(seq_id)[6:] == expected
