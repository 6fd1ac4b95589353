"""Beam search on the demo model in float32, through the whole stack: what transformers finds."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from tests.integration.demo_model.test_model_parity import make_stack
from tests.transformers_demo import demo

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("demo")]

MAX_TOKENS = 11
QUESTIONS = [  # with short answers, so that hypotheses end
    "Say yes or no: is water wet?",
    "What is the capital of France? Answer with one word.",
    "Is the sky blue? Yes or no.",
]


class Case(NamedTuple):
    """One search."""

    prompt: str
    width: int
    early_stopping: bool
    length_penalty: float


class Found(NamedTuple):
    """The hypotheses of a search, the best first."""

    token_ids: list[list[int]]
    scores: list[float]


def make_cases() -> list[Case]:
    """A search of each width that ends early and of each that does not."""
    prompts = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in QUESTIONS]
    ways = zip(itertools.product((2, 4), (False, True)), (0.5, 1.0, 2.0, 0.5), strict=True)
    return [Case(prompts[i % len(prompts)], *way, penalty) for i, (way, penalty) in enumerate(ways)]


CASES = make_cases()


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch's threads wait for each other where other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference() -> list[Found]:
    with one_thread(), torch.inference_mode():
        tokenizer, model = demo()
        return [transformers_found(model, tokenizer, case) for case in CASES]


def transformers_found(model: Any, tokenizer: Any, case: Case) -> Found:
    inputs = tokenizer(case.prompt, return_tensors="pt")
    eos = tokenizer.eos_token_id
    generated = model.generate(
        **inputs,
        num_beams=case.width,
        num_return_sequences=case.width,
        early_stopping=case.early_stopping,
        length_penalty=case.length_penalty,
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=eos,
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = generated.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    ends = [row.index(eos) + 1 if eos in row else MAX_TOKENS for row in rows]
    token_ids = [row[:end] for row, end in zip(rows, ends, strict=True)]
    return Found(token_ids, generated.sequences_scores.tolist())


async def search(stub: pb_grpc.InferenceServiceStub, case: Case) -> Found:
    beams = pb.BeamSearch(
        width=case.width,
        length_penalty=case.length_penalty,
        early_stopping=case.early_stopping,
    )
    params = pb.SamplingParams(n=case.width, max_tokens=MAX_TOKENS, beam_search=beams)
    token_ids: list[list[int]] = [[] for _ in range(case.width)]
    scores = [0.0] * case.width
    request = pb.GenerateRequest(text=case.prompt, sampling_params=params)
    async for response in stub.Generate(request):
        for output in response.outputs:
            token_ids[output.index] += output.token_ids
            if output.HasField("finish"):
                scores[output.index] = output.finish.score
    return Found(token_ids, scores)


async def test_hypotheses_are_those_of_transformers(
    runner: LocalRunner, reference: list[Found]
) -> None:
    """Though groups are swapped out and in."""
    config = SchedulerConfig(
        port=0,
        num_gpu_blocks_override=10,
        watermark=0,
        preemption_mode=PreemptionMode.SWAP,
        prefix_caching=False,
    )
    async with make_stack([runner], config) as (cluster, stub):
        answers = await asyncio.gather(*(search(stub, case) for case in CASES))
        assert cluster.step_loops[0].scheduler.preemption.num_preemptions > 0
    for case, answer, expected in zip(CASES, answers, reference, strict=True):
        assert answer.token_ids == expected.token_ids, case
        assert answer.scores == pytest.approx(expected.scores, abs=1e-4), case
    ended = [
        tokens for found in reference for tokens in found.token_ids if len(tokens) < MAX_TOKENS
    ]
    assert len(ended) > len(CASES)
