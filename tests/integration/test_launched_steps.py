"""A worker whose steps are launched draws, under a real scheduler, what one that waits draws."""

from pathlib import Path

import pytest

from signalbox import LLM, SamplingParams
from signalbox_worker.batch.batch import Batch, Launched
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.device.recorded_graphs import GraphsOnCpu
from tests.gpu_worker.models.attention.device_attention import make_device_runner
from tests.gpu_worker.tiny_models import VOCAB, make_model

PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12),
    SamplingParams(temperature=1.0, seed=1, n=3, max_tokens=10),
    SamplingParams(temperature=1.0, seed=2, max_tokens=14, stop_token_ids=list(range(3, 15))),
    SamplingParams(temperature=0.9, seed=3, max_tokens=9, frequency_penalty=0.7, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=4, max_tokens=30, ignore_eos=True, top_k=-1),
    SamplingParams(temperature=0.8, seed=5, max_tokens=8, top_p=0.9, min_tokens=3, logprobs=2),
]


def generate(runner: LocalRunner) -> list[list[tuple[int, ...]]]:
    prompts = [
        {"prompt_token_ids": [3 + (7 * i + j) % (VOCAB - 3) for j in range(4 + 5 * i)]}
        for i in range(len(PARAMS))
    ]
    llm = LLM._from_runner(lambda: runner)
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    assert not any(output.error for output in outputs)
    return [[tuple(one.token_ids) for one in output.outputs] for output in outputs]


def test_requests_of_all_kinds_draw_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path)
    expected = generate(make_device_runner(tmp_path, None, backend="torch"))
    fed: list[int] = []
    launch = LocalRunner.launch

    def spy(runner: LocalRunner, batch: Batch) -> Launched:
        fed.append(0 if batch.fed_from is None else int((batch.fed_from >= 0).sum()))
        return launch(runner, batch)

    monkeypatch.setattr(LocalRunner, "launch", spy)
    recorder = GraphsOnCpu()
    assert generate(make_device_runner(tmp_path, recorder)) == expected
    assert sum(map(bool, fed)) > 5, "no step was launched before its tokens were known"
    assert recorder.num_replayed > 5
