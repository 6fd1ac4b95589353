"""Models that pool behind the table of sequences: whole prompts, and prompts over several steps."""

from pathlib import Path

import numpy as np
import pytest

from signalbox_worker.lease.lease import execute_batch
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.lease.token_limit import TokenLimit
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.builders import make_new, make_step
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.models.pooling.encoder_models import save_model
from tests.gpu_worker.models.pooling.pooled_batches import pool
from tests.gpu_worker.pooled_steps import make_pooling_step

PROMPTS = [[5, 6, 7], list(range(5, 90)), [11] * 40]
CHUNK = 20


@pytest.mark.parametrize(("family", "is_cut"), [("qwen3", True), ("modernbert", False)])
def test_vectors_of_steps_are_those_of_batches(family: str, is_cut: bool, tmp_path: Path) -> None:
    save_model(tmp_path, family)
    runner = make_runner(tmp_path, runner="pooling")
    expected = pool(runner, PROMPTS)
    table = SequenceTable(
        model=runner.model,
        capacity=runner.profile(),
        num_gpu_blocks=200,
        grammars=Grammars(runner.model, tokenizer_json=b""),
    )
    runner.init_cache_engine(num_gpu_blocks=200, num_cpu_blocks=0)
    limit = TokenLimit(512, cuts_sequences=is_cut)
    size = CHUNK if is_cut else 512
    new = [
        make_new(i, prompt, list(range(8 * i, 8 * i + 6)), num_new_tokens=min(size, len(prompt)))
        for i, prompt in enumerate(PROMPTS)
    ]
    found = dict[int, object]()
    step, computed = make_pooling_step(*new), size
    for step_id in range(2, 8):
        result = table.append_tokens(execute_batch(runner, table.apply(step), limit))
        assert not result.failures
        assert not found.keys() & result.pooled.keys()
        found |= result.pooled
        left = {
            i: min(size, len(prompt) - computed)
            for i, prompt in enumerate(PROMPTS)
            if len(prompt) > computed
        }
        if not left:
            break
        step, computed = make_step(step_id, running=left), computed + size
    table.check()
    assert found.keys() == {0, 1, 2}
    for i, vector in enumerate(expected):
        np.testing.assert_allclose(found[i], vector, rtol=0, atol=1e-5)
