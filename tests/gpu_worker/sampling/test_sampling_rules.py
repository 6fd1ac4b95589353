"""Penalties, biases and rules, against transformers' processors on random logits."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.sampling import logits_processors
from tests.gpu_worker.generation import make_rows
from tests.gpu_worker.sampling.test_torch_sampler import make_logits, make_sampler
from tests.rounding import relative_error

VOCAB = 1000
PROMPT = [5, 6, 7, 7, 8]
OUTPUT = [9, 7, 9, 9, 10]


def edited(
    logits: Tensor, params: Sequence[SamplingParams], tokens: Sequence[Sequence[int]]
) -> Tensor:
    """What the rows' logits become, all rows in one batch."""
    rows = make_rows(
        params,
        token_index=range(len(params)),
        tokens=tokens,
        num_prompt=[len(PROMPT)] * len(params),
        vocab_size=logits.shape[1],
    )
    result = logits.clone()
    logits_processors.edit(result, rows)
    return result


def edited_one(params: SamplingParams, tokens: Sequence[int] = (*PROMPT, *OUTPUT)) -> Tensor:
    """One row among rows that ask for nothing, or for something else."""
    others = [SamplingParams(), SamplingParams(presence_penalty=1.0, bad_words=((3,),))]
    logits = make_logits(3, VOCAB)
    result = edited(logits, [others[0], params, others[1]], [[1, 2, 3, 4, 5, 6], tokens, [9] * 6])
    assert torch.equal(result[0], logits[0])
    return result[1]


def processed(processor: object, tokens: Sequence[int] = (*PROMPT, *OUTPUT)) -> Tensor:
    """What transformers makes of the same logits."""
    scores = make_logits(3, VOCAB)[1:2]
    result: Tensor = processor(torch.tensor([tokens]), scores)  # type: ignore[operator]
    return result[0]


@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    ours = edited_one(SamplingParams(repetition_penalty=penalty))
    theirs = processed(RepetitionPenaltyLogitsProcessor(penalty))
    # Each side rounds a product or a quotient, which may be a product with a rounded reciprocal.
    torch.testing.assert_close(ours, theirs, rtol=2 * relative_error(2), atol=0)


def test_presence_and_frequency_count_the_output_alone() -> None:
    ours = edited_one(SamplingParams(presence_penalty=0.5, frequency_penalty=-0.25))
    expected = make_logits(3, VOCAB)[1]
    for token_id, count in {9: 3, 7: 1, 10: 1}.items():
        expected[token_id] -= 0.5 - 0.25 * count
    # The penalties are exact; each side rounds a sum of three terms, below the logit + 2.
    allowed = 2 * relative_error(2) * (float(expected.abs().max()) + 2)
    torch.testing.assert_close(ours, expected, rtol=0, atol=allowed)


def test_penalties_come_in_vllms_order() -> None:
    params = SamplingParams(
        logit_bias=((9, 4.0),), repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=0.5
    )
    raw = float(make_logits(3, VOCAB)[1, 9]) + 4.0
    weaker = raw / 2 if raw > 0 else raw * 2
    # Bias, product or quotient (two roundings) and two penalties, none above |weaker| + 3.5.
    allowed = relative_error(5) * (abs(weaker) + 3.5)
    assert float(edited_one(params)[9]) == pytest.approx(weaker - 3 * 1.0 - 0.5, rel=0, abs=allowed)


def test_logit_bias_is_the_sequence_bias_of_transformers() -> None:
    from transformers import SequenceBiasLogitsProcessor

    bias = {17: 2.5, 3: -100.0, 999: 0.125}
    ours = edited_one(SamplingParams(logit_bias=tuple(bias.items())))
    theirs = processed(SequenceBiasLogitsProcessor({(t,): value for t, value in bias.items()}))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    "tokens",
    [
        [1, 2],
        [20, 21],
        [21],
        [0, 20, 21],
        [20, 20, 21, 22],
        [20, 21, 22],
        [22, 20],
        [5, 6, 7, 8, 9, 20, 21],
    ],
)
def test_bad_words_are_those_of_transformers(tokens: list[int]) -> None:
    from transformers import NoBadWordsLogitsProcessor

    words = ((30,), (20, 21), (20, 21, 22), (21, 21), (5, 6, 7, 8, 9, 20, 21, 31), (22, 20))
    ours = edited_one(SamplingParams(bad_words=words), tokens)
    theirs = processed(NoBadWordsLogitsProcessor([list(w) for w in words], 999), tokens)
    assert torch.equal(ours.isinf(), theirs.isinf())
    assert torch.equal(ours[ours.isfinite()], theirs[theirs.isfinite()])


def test_min_tokens_is_the_min_length_of_transformers() -> None:
    from transformers import MinNewTokensLengthLogitsProcessor

    stops = (4, 700)
    ours = edited_one(SamplingParams(min_tokens=6, stop_token_ids=stops))
    theirs = processed(MinNewTokensLengthLogitsProcessor(5, 6, list(stops)))
    assert torch.equal(ours.isinf(), theirs.isinf())


@pytest.mark.parametrize("vocab_size", [32, 33, 1000])
def test_only_allowed_tokens_are_left(vocab_size: int) -> None:
    allowed = (0, 1, 31, vocab_size - 1)
    params = [SamplingParams(), SamplingParams(allowed_token_ids=allowed)]
    result = edited(make_logits(2, vocab_size), params, [[1], [1]])
    assert result[0].isfinite().all()
    assert result[1].isfinite().nonzero().flatten().tolist() == sorted(set(allowed))


def test_a_greedy_row_is_the_likeliest_of_what_is_left() -> None:
    logits = make_logits(2, VOCAB)
    order = logits[1].argsort(descending=True).tolist()
    params = SamplingParams(logit_bias=((order[2], -50.0),), bad_words=((order[0],), (7, order[1])))
    rows = make_rows(
        [SamplingParams(), params], token_index=[0, 1], tokens=[[7], [7]], vocab_size=VOCAB
    )
    samples = make_sampler()(logits, rows)
    assert samples.token_ids.tolist() == [int(logits[0].argmax()), order[3]]


def test_a_row_that_nothing_is_left_for_fails_alone() -> None:
    params = [
        SamplingParams(temperature=1.0, allowed_token_ids=(4, 5), bad_words=((4,), (5,))),
        SamplingParams(temperature=1.0),
    ]
    rows = make_rows(params, token_index=[0, 1], tokens=[[1], [1]], vocab_size=VOCAB)
    samples = make_sampler()(make_logits(2, VOCAB), rows)
    assert samples.failed == {0: "every token is suppressed"}
    alone = make_sampler()(make_logits(2, VOCAB)[1:], rows.take(rows.position[1:]))
    assert samples.token_ids[1] == alone.token_ids[0]
