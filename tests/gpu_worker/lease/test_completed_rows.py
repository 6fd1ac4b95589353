"""Rows that read drawn tokens, or report log probabilities, beside steps that stay in flight."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from signalbox_contract.sampling_params import SamplingParams
from signalbox_kernels import triton
from signalbox_worker.batch.batch import Batch, BatchOutput, Launched
from signalbox_worker.lease.step_pipeline import StepPipeline
from tests.gpu_worker.device.recorded_graphs import GraphsOnCpu
from tests.gpu_worker.lease.steps_in_flight import (
    PENALISED,
    RANDOM,
    Steps,
    decode,
    make_lease,
    make_sequences,
    raise_out_of_memory,
)
from tests.gpu_worker.models.attention.device_attention import make_device_runner
from tests.gpu_worker.tiny_models import VOCAB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not triton.is_installed() or os.environ["TRITON_INTERPRET"] != "1",
        reason="Triton's sampler is interpreted, beside graphs of a CPU",
    ),
]

RULED = SamplingParams(temperature=1.0, seed=6, bad_words=((9,), (11, 12)))
REPORTED = SamplingParams(temperature=1.0, seed=8, num_logprobs=3)
NAMED = SamplingParams(num_logprobs=0, logprob_token_ids=(5, 80, 5))
IN_PAIRS = ("regex", "(AB|CD|EF){9}")


@pytest.fixture(scope="module")
def tokenizer() -> bytes:
    """The model's ids stand for bytes from 0x21 on, in the letters of byte-level tokenizers."""
    letters = [chr(0x21 + i) if i < 94 else chr(0x100 + i) for i in range(VOCAB)]
    found = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return found.to_str().encode()


def test_what_reads_drawn_tokens_and_what_is_reported_leave_steps_in_flight(
    tiny: Path, tokenizer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is launched while the one before it is under way, whatever its rows ask for."""
    runner = make_device_runner(tiny, GraphsOnCpu(), max_num_seqs=8, sampling="triton")
    grammar = SamplingParams(temperature=1.0, seed=5, structured_output=IN_PAIRS)
    params = (RANDOM, PENALISED, RULED, REPORTED, NAMED, grammar)
    in_flight: list[int] = []
    launch = StepPipeline.launch

    def spy(pipeline: StepPipeline, *args: Any) -> Any:
        in_flight.append(len(pipeline))
        return launch(pipeline, *args)

    monkeypatch.setattr(StepPipeline, "launch", spy)
    results = []
    for depth in (1, 2):
        in_flight.clear()
        steps = Steps(make_lease(runner, tokenizer), depth)
        steps.send(new=make_sequences(*params))
        decode(steps, list(range(len(params))), 3)
        tokens = steps.tokens()
        steps.lease.table.check()
        results.append((tokens, [result.logprobs for result in steps.results]))
    assert results[0] == results[1]
    assert in_flight == [0] + [1] * 3
    tokens, reported = results[1]
    assert re.fullmatch("(AB|CD|EF){2}", "".join(chr(0x21 + token) for token in tokens[5]))
    assert [[*each] for each in reported] == [[3, 4]] * 4
    assert [len(each[3].top_token_ids) for each in reported] == [3] * 4
    assert [each[4].top_token_ids for each in reported] == [[5, 80, 5]] * 4


def test_rows_are_completed_when_a_step_with_rules_cannot_be_launched(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its launch fails before the tokens of the step before it are known, or after."""
    runner = make_device_runner(tiny, GraphsOnCpu(), max_num_seqs=8, sampling="triton")

    def fail_late(batch: Batch) -> Launched:
        batch.complete()
        raise torch.OutOfMemoryError("CUDA out of memory")

    def drive(steps: Steps, fail: Callable[[Batch], Launched] | None) -> dict[int, list[int]]:
        steps.send(new=make_sequences(RANDOM, PENALISED, RULED))
        decode(steps, [0, 1, 2], 1)
        with monkeypatch.context() as patched:
            if fail is not None:
                patched.setattr(runner, "launch", fail)
            decode(steps, [0, 1, 2], 1)
        decode(steps, [0, 1, 2], 1)
        return steps.tokens()

    execute = runner.execute

    def small(batch: Batch) -> BatchOutput:
        assert batch.fed_from is None
        return execute(batch)

    expected = drive(Steps(make_lease(runner), 1), None)
    monkeypatch.setattr(runner, "execute", small)
    for fail in (raise_out_of_memory, fail_late):
        steps = Steps(make_lease(runner), 2)
        assert drive(steps, fail) == expected
        steps.lease.table.check()
