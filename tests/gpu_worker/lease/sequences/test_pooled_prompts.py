"""Prompts that are pooled draw nothing: their last token has a vector, and what else is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingModel, PoolingParams
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import NewSequence, Step
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from tests.gpu_worker.builders import make_new, make_runner, make_step, make_table
from tests.gpu_worker.pooled_steps import BOTH_WAYS, LAST, MEAN, make_pooling_step

PROMPT = [5, 6, 7, 8, 9, 10]
VECTOR = np.array([0.5, -1.0, 2.0], dtype=np.float32)


def make_pooling_table(model: PoolingModel = LAST, **fields: Any) -> SequenceTable:
    return make_table(make_runner(pooling=model, **fields))


def pool(batch: Batch, **reported: Any) -> BatchOutput:
    assert not len(batch.rows)
    assert batch.pooling is not None
    last = np.flatnonzero(batch.pooling.is_last).tolist()
    pooled = {i: VECTOR + i for i in last}
    return BatchOutput(token_ids=np.empty(0, dtype=np.int32), pooled=pooled, **reported)


def test_the_last_chunk_of_a_prompt_has_a_vector_and_no_token() -> None:
    table = make_pooling_table()
    new = [make_new(1, PROMPT, [3, 1], num_new_tokens=4), make_new(2, [1, 2], [0])]
    batch = table.apply(make_pooling_step(*new))
    assert batch.pooling is not None
    assert batch.pooling.is_last.tolist() == [False, True]
    assert len(set(batch.pooling.slots.tolist())) == 2
    result = table.append_tokens(pool(batch))
    assert (result.seq_ids.tolist(), result.token_ids.tolist()) == ([], [])
    assert {seq_id: one.tolist() for seq_id, one in result.pooled.items()} == {2: [1.5, 0.0, 3.0]}
    slot = batch.pooling.slots[0]
    batch = table.apply(make_step(2, running={1: 2}, finished=[2]))
    assert batch.pooling is not None
    assert (batch.pooling.slots.tolist(), batch.pooling.is_last.tolist()) == ([slot], [True])
    result = table.append_tokens(pool(batch))
    assert result.pooled.keys() == {1}
    assert table.token_ids(1) == PROMPT
    table.check()


def test_a_sequence_that_failed_has_no_vector_and_the_others_have_theirs() -> None:
    table = make_pooling_table()
    new = [make_new(1, PROMPT, [3, 1]), make_new(2, [1, 2], [0])]
    batch = table.apply(make_pooling_step(*new))
    result = table.append_tokens(pool(batch, failed_seqs={0: "its vector is not finite"}))
    assert result.failures[1].message == "its vector is not finite"
    assert result.pooled.keys() == {2}


def test_tokens_behind_the_first_segment_have_type_1_in_every_chunk() -> None:
    table = make_pooling_table()
    first = make_new(1, PROMPT, [0, 1], num_new_tokens=4)
    pooling = {1: PoolingParams(num_first_segment_tokens=3, num_skipped_tokens=2)}
    other = make_new(2, [1, 2], [2])
    step = make_step(new=[first, other], pooling=pooling | {2: PoolingParams()})
    batch = table.apply(step)
    assert batch.token_types is not None
    assert batch.token_types.tolist() == [0, 0, 0, 1, 0, 0]
    assert batch.pooling is not None
    assert batch.pooling.num_skipped.tolist() == [2, 0]
    table.append_tokens(pool(batch))
    batch = table.apply(make_step(2, running={1: 2}, finished=[2]))
    assert batch.token_types is not None
    assert batch.token_types.tolist() == [1, 1]


def test_a_batch_of_one_segment_has_no_token_types() -> None:
    table = make_pooling_table()
    assert table.apply(make_pooling_step(make_new(1, PROMPT, [0, 1]))).token_types is None


def refuse(table: SequenceTable, step: Step, field: str) -> None:
    before = len(table)
    with pytest.raises(InvalidArgument, match=f"^{field}"):
        table.apply(step)
    assert len(table) == before
    table.check()


def test_a_section_on_a_worker_that_generates_is_refused() -> None:
    table = make_table(make_runner())
    new = make_new(1, PROMPT, [0, 1])
    refuse(table, make_pooling_step(new), "pooling")
    refuse(table, make_step(pooling={}), "pooling")
    assert table.apply(make_step(new=[new])).pooling is None


@pytest.mark.parametrize(
    ("model", "changes", "params", "field"),
    [
        (LAST, {}, PoolingParams(num_skipped_tokens=6), "pooling.num_skipped_tokens"),
        (LAST, {}, PoolingParams(num_skipped_tokens=-1), "pooling.num_skipped_tokens"),
        (LAST, {}, PoolingParams(num_first_segment_tokens=7), "pooling.num_first_segment_tokens"),
        (LAST, {"num_prompt_tokens": 5}, None, "new_groups.num_prompt_tokens"),
        (
            LAST,
            {"params": SamplingParams(num_prompt_logprobs=0)},
            None,
            "new_groups.sampling_params.num_prompt_logprobs",
        ),
        (MEAN, {"num_computed_tokens": 4}, None, "new_groups.sequences.num_computed_tokens"),
        (BOTH_WAYS, {"num_computed_tokens": 4}, None, "new_groups.sequences.num_computed_tokens"),
        (BOTH_WAYS, {"num_new_tokens": 4}, None, "new_groups.sequences.num_new_tokens"),
        (MEAN, {}, PoolingParams(is_per_token=True), "pooling.per_token_seq_ids"),
        (LAST, {"returns_logits": True}, None, "new_groups.returns_logits"),
    ],
)
def test_what_cannot_be_pooled_is_refused_by_name(
    model: PoolingModel, changes: dict[str, Any], params: PoolingParams | None, field: str
) -> None:
    table = make_pooling_table(model)
    good, bad = make_new(1, PROMPT, [0, 1]), make_new(2, PROMPT, [2, 3], **changes)
    pooling = {1: PoolingParams(), 2: params or PoolingParams()}
    refuse(table, make_step(new=[good, bad], pooling=pooling), field)
    table.append_tokens(pool(table.apply(make_pooling_step(good))))


@pytest.mark.parametrize("seq_ids", [(), (1,), (1, 2, 3)])
def test_each_new_sequence_and_no_other_is_in_the_section(seq_ids: tuple[int, ...]) -> None:
    new = [make_new(1, PROMPT, [0, 1]), make_new(2, PROMPT, [2, 3])]
    step = make_step(new=new, pooling=dict.fromkeys(seq_ids, PoolingParams()))
    refuse(make_pooling_table(), step, "pooling.seq_ids")
    refuse(make_pooling_table(), replace(step, pooling=None), "pooling.seq_ids")


def test_forks_and_steps_behind_the_end_are_refused() -> None:
    table = make_pooling_table()
    table.append_tokens(pool(table.apply(make_pooling_step(make_new(1, PROMPT, [0, 1])))))
    fork = Fork(parent=1, child=2, branch=1, token_id=3)
    refuse(table, make_step(2, running={2: 1}, forks=[fork]), "forks")
    refuse(table, make_step(2, running={1: 1}), "running.num_new_tokens")


def make_long(seq_id: int, first_block: int) -> NewSequence:
    return make_new(seq_id, [1] * 40, list(range(first_block, first_block + 10)))


def test_a_sequence_that_is_computed_whole_may_exceed_a_step_alone() -> None:
    table = make_pooling_table(BOTH_WAYS, num_gpu_blocks=32)  # a step has 32 tokens
    other = make_new(2, [1], [20])
    refuse(table, make_pooling_step(make_long(1, 0), other), "num_new_tokens")
    assert len(table.apply(make_pooling_step(make_long(1, 0))).token_ids) == 40
    refuse(
        make_pooling_table(MEAN, num_gpu_blocks=32),
        make_pooling_step(make_long(1, 0)),
        "num_new_tokens",
    )
