"""A simulated vector says what it should whatever the chunks, and shows each mistake."""

from dataclasses import replace

import numpy as np
import pytest

from signalbox_contract.pooling import PoolingModel, PoolingParams
from signalbox_contract.step_result import StepResult
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.gpu_worker.builders import make_config, make_new, make_runner, make_step, make_table
from tests.gpu_worker.pooled_steps import BOTH_WAYS, LAST, MEAN, MODELS, NAMES, make_pooling_step
from tests.simulated_model import expected_vector

PROMPT = [5, 6, 7, 8, 9, 10, 11]
PARAMS = [
    PoolingParams(),
    PoolingParams(num_first_segment_tokens=3),
    PoolingParams(num_skipped_tokens=4),
]


def compute(runner: SimulatedRunner, table: SequenceTable, batch: Batch) -> StepResult:
    return table.append_tokens(runner.execute(batch))


def pool(
    runner: SimulatedRunner, *, chunk: int, params: PoolingParams = PARAMS[0]
) -> dict[int, list[float]]:
    """Runs PROMPT as sequence 1 in chunks, beside sequence 2, which ends at once."""
    table = make_table(runner)
    new = make_new(1, PROMPT, [9, 2], num_new_tokens=min(chunk, len(PROMPT)))
    pooling = {1: params, 2: PoolingParams()}
    step = make_step(new=[new, make_new(2, [3, 3], [5])], pooling=pooling)
    pooled = dict(compute(runner, table, table.apply(step)).pooled)
    for start in range(chunk, len(PROMPT), chunk):
        assert 1 not in pooled
        step = make_step(running={1: min(chunk, len(PROMPT) - start)})
        pooled |= compute(runner, table, table.apply(step)).pooled
    return {seq_id: vector.tolist() for seq_id, vector in pooled.items()}


@pytest.mark.parametrize("params", PARAMS, ids=["plain", "segments", "skips"])
@pytest.mark.parametrize(
    ("model", "chunk"), [*((LAST, i) for i in (1, 3, 7)), *((MEAN, i) for i in (1, 3, 7))]
)
def test_a_vector_is_as_expected_whatever_the_chunks(
    model: PoolingModel, chunk: int, params: PoolingParams
) -> None:
    found = pool(make_runner(pooling=model), chunk=chunk, params=params)
    assert found == {
        1: expected_vector(PROMPT, model=model, params=params).tolist(),
        2: expected_vector([3, 3], model=model).tolist(),
    }


@pytest.mark.parametrize(
    "params",
    [*PARAMS, PoolingParams(is_per_token=True)],
    ids=["plain", "segments", "skips", "per-token"],
)
def test_a_vector_of_attention_both_ways_is_as_expected(params: PoolingParams) -> None:
    model = replace(BOTH_WAYS, num_token_outputs=5)
    found = pool(make_runner(pooling=model), chunk=7, params=params)
    assert found[1] == expected_vector(PROMPT, model=model, params=params).tolist()


def test_vectors_differ_by_token_place_segment_skip_and_model() -> None:
    prompts = [PROMPT, PROMPT[::-1], PROMPT[:-1]]
    found = [expected_vector(one, model=model) for model in (MEAN, BOTH_WAYS) for one in prompts]
    found += [
        expected_vector(PROMPT, model=model, params=params)
        for model in (MEAN, BOTH_WAYS)
        for params in PARAMS[1:]
    ]
    assert len({one.tobytes()[:8] for one in found}) == 10
    for one in found:
        assert one.dtype == np.float32
        assert np.abs(one).max() <= 1


class WritesOneSlotWrong(SimulatedRunner):
    def execute(self, batch: Batch) -> BatchOutput:
        slots = batch.slot_mapping.copy()
        slots[-3] = (slots[-3] + 1) % self.simulation.gpu_kv.size
        return super().execute(replace(batch, slot_mapping=slots))


class ReadsOneBlockWrong(SimulatedRunner):
    def execute(self, batch: Batch) -> BatchOutput:
        tables = batch.block_tables.copy()
        tables[0, 0] = (tables[0, 0] + 1) % len(self.simulation.gpu_kv)
        return super().execute(replace(batch, block_tables=tables))


class IgnoresSegments(SimulatedRunner):
    def execute(self, batch: Batch) -> BatchOutput:
        return super().execute(replace(batch, token_types=None))


@pytest.mark.parametrize("model", MODELS, ids=NAMES)
@pytest.mark.parametrize("faulty", [WritesOneSlotWrong, ReadsOneBlockWrong, IgnoresSegments])
def test_a_planted_error_changes_the_vector(
    faulty: type[SimulatedRunner], model: PoolingModel
) -> None:
    runner = faulty(make_config(pooling=model))
    runner.init_cache_engine(num_gpu_blocks=16, num_cpu_blocks=4)
    params = PoolingParams(num_first_segment_tokens=3)
    found = pool(runner, chunk=7, params=params)
    assert found[1] != expected_vector(PROMPT, model=model, params=params).tolist()


def test_a_slot_that_is_used_again_begins_anew() -> None:
    runner = make_runner(pooling=MEAN)
    table = make_table(runner)
    seen = set()
    for seq_id in range(1, 20):  # more than there are slots; each is given up half-way
        new = make_new(seq_id, PROMPT, [0, 1], num_new_tokens=3)
        finished = [seq_id - 1] if seq_id > 1 else []
        batch = table.apply(make_pooling_step(new, finished=finished))
        assert batch.pooling is not None
        seen.add(int(batch.pooling.slots[0]))
        compute(runner, table, batch)
    assert len(seen) < 19
    last = table.apply(make_step(running={19: 4}))
    vector = compute(runner, table, last).pooled[19]
    assert vector.tolist() == expected_vector(PROMPT, model=MEAN).tolist()
