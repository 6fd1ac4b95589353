"""Rules and penalties look at a sequence's tokens alone, however the worker came to know them."""

import numpy as np
import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.forks import Fork
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.sampling_rows import SampleRows
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.sampling.token_constraints import make_mask
from tests.gpu_worker.builders import make_new, make_runner, make_step, make_table

PROMPT = [10, 11, 12, 13, 14]
RULED = SamplingParams(
    temperature=1.0,
    presence_penalty=0.5,
    repetition_penalty=1.5,
    logit_bias=((40, 1.0),),
    allowed_token_ids=(20, 21, 22, 40),
    bad_words=((20, 21), (14, 20, 22), (40,)),
    num_logprobs=2,
)


def append(table: SequenceTable, batch: Batch, *tokens: int) -> None:
    table.append_tokens(BatchOutput(token_ids=np.array(tokens, dtype=np.int32)))


def seen(rows: SampleRows) -> list[int]:
    """The tokens that penalties of the only row count."""
    assert rows.penalties is not None
    known: list[int] = rows.penalties.tokens[rows.penalties.owners[0], : rows.position[0]].tolist()
    return known


def run(step_of_resume: int | None) -> list[tuple[object, ...]]:
    """Decodes four tokens; the sequence is forgotten and sent in full before one of them."""
    table = make_table(make_runner())
    batch = table.apply(make_step(new=[make_new(1, PROMPT, [0, 1, 2], params=RULED)]))
    tokens, found = list(PROMPT), []
    for number, token in enumerate((20, 22, 20, 21)):
        rows = batch.rows
        assert rows.suppressed is not None
        found.append((seen(rows), sorted(rows.suppressed.token_ids.tolist()), rows.position[0]))
        assert rows.allowed is not None
        assert rows.biases is not None
        assert (rows.allowed.masks[0] == make_mask((20, 21, 22, 40), vocab_size=512)).all()
        assert rows.biases.values.tolist() == [1.0]
        append(table, batch, token)
        tokens.append(token)
        step = make_step(2, running={1: 1})
        if number == step_of_resume:
            table.apply(make_step(2, finished=[1]))
            append(table, batch)
            new = make_new(9, tokens, [3, 4, 5], num_prompt_tokens=5, params=RULED)
            step = make_step(3, new=[new])
        elif step_of_resume is not None and number > step_of_resume:
            step = make_step(3, running={9: 1})
        batch = table.apply(step)
    table.check()
    return found


def test_rules_follow_the_tokens_that_are_fed_forward() -> None:
    positions = run(None)
    assert [row[0] for row in positions] == [
        PROMPT,
        [*PROMPT, 20],
        [*PROMPT, 20, 22],
        [*PROMPT, 20, 22, 20],
    ]
    assert [row[1] for row in positions] == [[40], [21, 22, 40], [40], [21, 40]]


@pytest.mark.parametrize("step_of_resume", [0, 1, 2])
def test_a_resumed_sequence_goes_on_under_the_same_rules(step_of_resume: int) -> None:
    assert run(step_of_resume) == run(None)


def test_a_fork_counts_its_own_tokens() -> None:
    table = make_table(make_runner())
    params = SamplingParams(frequency_penalty=1.0)
    batch = table.apply(make_step(new=[make_new(1, PROMPT, [0, 1], params=params, num_samples=2)]))
    append(table, batch, 30, 31)
    batch = table.apply(make_step(2, running={1: 1, 2: 1}, forks=[Fork(1, 2, 1, 31)]))
    penalties = batch.rows.penalties
    assert penalties is not None
    last = penalties.tokens[penalties.owners, batch.rows.position - 1]
    assert last.tolist() == [30, 31]


def test_rows_that_ask_for_nothing_carry_nothing() -> None:
    table = make_table(make_runner())
    rows = table.apply(make_step(new=[make_new(1, PROMPT, [0, 1])])).rows
    assert (rows.suppressed, rows.biases, rows.allowed, rows.penalties) == (None,) * 4
    assert not rows.needs_logits.any()


def test_prompt_rows_are_the_tokens_that_the_prompt_goes_on_after() -> None:
    table = make_table(make_runner())
    asks = SamplingParams(num_prompt_logprobs=2)
    first = make_new(1, PROMPT, [0, 1], params=asks, num_new_tokens=2)
    other = make_new(2, [7, 8], [2])
    batch = table.apply(make_step(new=[other, first]))
    rows = batch.prompt_rows
    assert rows is not None
    assert rows.token_index.tolist() == [2, 3]
    assert rows.targets.tolist() == [11, 12]
    assert (rows.first_position.tolist(), rows.lengths.tolist()) == ([1], [2])
    append(table, batch, 50)
    batch = table.apply(make_step(2, running={1: 3, 2: 1}))
    rows = batch.prompt_rows
    assert rows is not None
    assert rows.targets.tolist() == [13, 14]
    assert rows.first_position.tolist() == [3]
    append(table, batch, 51, 52)
    assert table.apply(make_step(3, running={1: 1})).prompt_rows is None
