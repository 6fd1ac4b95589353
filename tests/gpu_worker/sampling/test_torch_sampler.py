"""The sampler: distributions, filters, independence of rows."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.batch.batch import BatchOutput
from signalbox_worker.sampling.torch_sampler import TorchSampler
from tests.gpu_worker.generation import make_rows

VOCAB = 1000


def make_sampler(vocab_size: int = VOCAB) -> TorchSampler:
    return TorchSampler(vocab_size=vocab_size, device=torch.device("cpu"))


def make_logits(num_rows: int, vocab_size: int = VOCAB) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(1)) * 3


def draw(logits: Tensor, params: Sequence[SamplingParams], **columns: Sequence[int]) -> BatchOutput:
    rows = make_rows(params, token_index=range(len(params)), **columns)
    return make_sampler(logits.shape[1])(logits, rows)


def drawn_set(row: Tensor, params: SamplingParams, draws: int = 3000) -> set[int]:
    """What a row yields over many positions."""
    samples = draw(row.expand(draws, -1), [params] * draws, position=range(1, draws + 1))
    return set(samples.token_ids.tolist())


def warped(row: Tensor, params: SamplingParams) -> Tensor:
    """The scores that transformers' warpers leave, in our order."""
    from transformers.generation import logits_process as warpers

    scores = row[None] / params.temperature
    ids = torch.zeros(1, 1, dtype=torch.long)
    if params.min_p:
        scores = warpers.MinPLogitsWarper(params.min_p)(ids, scores)
    if params.top_k:
        scores = warpers.TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = warpers.TopPLogitsWarper(params.top_p)(ids, scores)
    if params.typical_p < 1:
        scores = warpers.TypicalLogitsWarper(params.typical_p)(ids, scores)
    return scores[0]


def test_greedy_is_argmax_whatever_the_filters() -> None:
    logits = make_logits(3)
    params = [
        SamplingParams(),
        SamplingParams(temperature=1e-6, top_p=0.5, min_p=0.9),
        SamplingParams(temperature=0.0, top_k=3),
    ]
    assert draw(logits, params).token_ids.tolist() == logits.argmax(-1).tolist()


def test_bfloat16_logits_are_accepted() -> None:
    logits = make_logits(2).bfloat16()
    samples = draw(logits, [SamplingParams(), SamplingParams(temperature=1.0)])
    assert samples.token_ids[0] == logits[0].float().argmax()
    assert not samples.failed


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    row = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, -30.0])
    count = 20000
    params = [SamplingParams(temperature=temperature, seed=7)] * count
    samples = draw(row.expand(count, -1), params, position=range(1, count + 1))

    expected = (row / temperature).softmax(0) * count
    seen = Counter(samples.token_ids.tolist())
    likely = [i for i in range(len(row)) if expected[i] > 5]
    chi_square = sum((seen[i] - float(expected[i])) ** 2 / float(expected[i]) for i in likely)
    assert chi_square < 20.5  # 99.9 % of the distribution with 5 degrees of freedom


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=2.0, top_p=0.2),
        SamplingParams(temperature=1.0, top_p=1e-6),
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(temperature=0.5, min_p=0.05, top_k=8, top_p=0.8),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1.0, typical_p=0.2),
        SamplingParams(temperature=1.0, typical_p=0.9),
        SamplingParams(temperature=2.0, typical_p=0.5),
        SamplingParams(temperature=1.0, typical_p=1e-6),
        SamplingParams(temperature=1.0, typical_p=0.5, top_k=10),
        SamplingParams(temperature=1.5, typical_p=0.7, top_p=0.8, min_p=0.02),
    ],
)
def test_filters_keep_what_transformers_keeps(params: SamplingParams) -> None:
    row = torch.randn(50, generator=torch.Generator().manual_seed(3))
    probabilities = warped(row, params).softmax(0)
    seen = drawn_set(row, params)
    assert seen <= set(probabilities.nonzero().flatten().tolist())
    assert set((probabilities > 0.01).nonzero().flatten().tolist()) <= seen


def test_filters_look_past_the_first_candidates() -> None:
    flat = torch.zeros(VOCAB) + torch.arange(VOCAB) * 1e-6
    nucleus = drawn_set(flat, SamplingParams(temperature=1.0, top_p=0.9), draws=6000)
    assert 850 <= len(nucleus) <= 901
    assert min(nucleus) >= 99
    top = drawn_set(flat, SamplingParams(temperature=1.0, top_k=600), draws=6000)
    assert min(top) >= VOCAB - 600
    assert len(top) > 550


def test_draw_depends_on_seed_branch_and_position_alone() -> None:
    row = make_logits(1)
    mine = SamplingParams(temperature=1.0, seed=42)
    alone = draw(row, [mine], branch=[2], position=[17]).token_ids[0]

    others = [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=400),
    ]
    logits = torch.cat([make_logits(3), row])
    crowd = draw(logits, [*others, mine], branch=[0, 1, 2, 2], position=[1, 2, 3, 17])
    assert crowd.token_ids[3] == alone

    changed = [
        draw(row, [mine], branch=[b], position=[p]).token_ids[0]
        for b, p in [(b, p) for b in range(4) for p in range(17, 22)]
    ]
    assert len(set(changed)) > 5


@pytest.mark.parametrize("company", [SamplingParams(temperature=1.0, top_k=900), SamplingParams()])
def test_filtered_draw_does_not_depend_on_the_batch(company: SamplingParams) -> None:
    mine = SamplingParams(temperature=1.0, top_p=0.8, top_k=40, seed=5)
    logits = (make_logits(1).bfloat16().float() / 8).round() * 4  # many ties
    for position in range(1, 40):
        alone = draw(logits, [mine], position=[position]).token_ids[0]
        both = draw(logits.expand(2, -1), [company, mine], position=[position, position])
        assert both.token_ids[1] == alone


def test_suppressed_tokens_are_not_drawn() -> None:
    logits = make_logits(2)
    best = logits.argmax(-1).tolist()
    rows = make_rows([SamplingParams()] * 2, token_index=[0, 1], suppressed={1: (best[1],)})
    samples = make_sampler()(logits, rows)
    assert samples.token_ids[0] == best[0]
    assert samples.token_ids[1] == logits[1].topk(2).indices[1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_that_is_not_finite_fails_and_its_neighbours_do_not(
    value: float, temperature: float
) -> None:
    params = [SamplingParams(temperature=temperature, top_p=0.9, num_logprobs=2)] * 3
    logits = make_logits(3)
    healthy = draw(logits, params)
    logits[1, 5] = value
    samples = draw(logits, params)
    assert samples.failed == {1: "logits are not finite"}
    assert samples.token_ids[[0, 2]].tolist() == healthy.token_ids[[0, 2]].tolist()
    assert [entry.row for entry in samples.logprobs] == [0, 2]


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = make_logits(3)
    params = [
        SamplingParams(temperature=2.0, top_k=50, num_logprobs=3, seed=3),
        SamplingParams(),
        SamplingParams(num_logprobs=0),
    ]
    samples = draw(logits, params)
    table = logits.log_softmax(-1)
    first, last = samples.logprobs
    token = int(samples.token_ids[0])
    assert (first.row, last.row) == (0, 2)
    assert first.logprob == pytest.approx(float(table[0, token]), abs=1e-5)
    assert first.rank == int((table[0] >= table[0, token]).sum())
    assert first.top_token_ids == table[0].topk(3).indices.tolist()
    assert first.top_logprobs == pytest.approx(table[0].topk(3).values.tolist(), abs=1e-5)
    assert (last.rank, last.top_token_ids) == (1, [])
