"""Log probabilities of prompts: the model's own, in chunks of any size, on either path."""

from pathlib import Path

import numpy as np
import pytest
import torch

from signalbox_contract.logprobs import PromptLogprobs
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.builders import make_new, make_step
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.tiny_models import VOCAB, make_model
from tests.rounding import LOGITS

PROMPT = np.random.default_rng(5).integers(3, VOCAB, 150).tolist()
ASKS = SamplingParams(num_prompt_logprobs=3)


def make_table(runner: LocalRunner) -> SequenceTable:
    capacity = WorkerCapacity(
        block_size=16,
        num_gpu_blocks=20,
        num_cpu_blocks=0,
        block_bytes=1,
        max_num_seqs=16,
        max_num_batched_tokens=512,
    )
    runner.init_cache_engine(num_gpu_blocks=20, num_cpu_blocks=0)
    grammars = Grammars(runner.model, tokenizer_json=b"")
    return SequenceTable(
        model=runner.model, capacity=capacity, num_gpu_blocks=20, grammars=grammars
    )


def prefill(runner: LocalRunner, chunk: int) -> list[PromptLogprobs]:
    """Computes the prompt in chunks, beside a sequence that asks for nothing."""
    table = make_table(runner)
    found: list[PromptLogprobs] = []
    first = make_new(1, PROMPT, list(range(10)), params=ASKS, num_new_tokens=chunk)
    batch = table.apply(make_step(new=[make_new(2, [5, 6], list(range(10, 20))), first]))
    for start in range(chunk, len(PROMPT) + chunk, chunk):
        outcome = table.append_tokens(runner.execute(batch))
        found += outcome.prompt_logprobs
        if start < len(PROMPT):
            length = min(chunk, len(PROMPT) - start)
            batch = table.apply(make_step(2, running={1: length, 2: 1}))
    assert not outcome.failures
    return found


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_prompt_logprobs_are_those_of_transformers(backend: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, "llama3", head_dim=16)
    try:
        runner = make_runner(tmp_path, block_size=16, cpu_backend=backend)
    except ValueError as error:
        pytest.skip(str(error))
    with torch.inference_mode():
        table = reference(torch.tensor([PROMPT])).logits[0].float().log_softmax(-1)
    for chunk in (len(PROMPT), 70, 7):
        runs = prefill(runner, chunk)
        assert [run.seq_id for run in runs] == [1] * len(runs)
        assert [run.first_position for run in runs][:2] == [1, chunk + 1][: len(runs)]
        entries = [entry for run in runs for entry in run.logprobs]
        assert len(entries) == len(PROMPT) - 1
        for position, entry in enumerate(entries, start=1):
            row, token = table[position - 1], PROMPT[position]
            assert entry.logprob == pytest.approx(float(row[token]), abs=LOGITS)
            assert abs(entry.rank - int((row >= row[token]).sum())) <= 1
            assert entry.top_logprobs == pytest.approx(row.topk(3).values.tolist(), abs=LOGITS)


def test_logits_that_are_not_finite_fail_the_sequence_alone(native_tiny: Path) -> None:
    runner = make_runner(native_tiny, block_size=16)
    table = make_table(runner)
    new = [make_new(s, [5, 6, 7], [s], params=ASKS) for s in (1, 2)]
    samples = runner.execute(table.apply(make_step(new=new)))
    poisoned = samples.prompt_logprobs[1]._replace(logprob=float("nan"))
    samples.prompt_logprobs[1] = poisoned
    outcome = table.append_tokens(samples)
    assert [*outcome.failures] == [1]
    assert [run.seq_id for run in outcome.prompt_logprobs] == [2]
    assert outcome.seq_ids.tolist() == [2]
