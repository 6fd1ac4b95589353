"""The search alone: transformers' hypotheses and scores, and tokens that are settled for good."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from signalbox_contract.request import BeamSearchParams
from signalbox_scheduler.requests.beam_search import BeamSearch, Candidates, Hypothesis
from tests.rounding import relative_error

VOCAB_SIZE, EOS, OTHER_STOP = 13, 5, 7
PROMPT = [1, 2, 3]


class TinyModel:
    """A random model, with what it said before."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            initializer_range=1.0,
            tie_word_embeddings=False,
        )
        self.model = LlamaForCausalLM(config).eval()
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    @torch.inference_mode()
    def logprobs(self, token_ids: list[int]) -> torch.Tensor:
        """Returns [VOCAB_SIZE], of the token after the prompt and these."""
        key = tuple(token_ids)
        if key not in self._known:
            logits = self.model(torch.tensor([PROMPT + token_ids])).logits[0, -1]
            self._known[key] = torch.log_softmax(logits.float(), dim=-1)
        return self._known[key]


class SameLogprobs(LogitsProcessor):  # type: ignore[misc]  # transformers' class is untyped
    """Gives transformers the log probabilities that our search gets, bit for bit.

    Its own come from other shapes (a batch, a KV cache), whose matrix products each processor
    rounds in its own way. What the processors before this one forbid stays forbidden.
    """

    def __init__(self, model: TinyModel) -> None:
        self._model = model

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Takes and returns [beams, VOCAB_SIZE]; input_ids is [beams, tokens so far]."""
        rows = [self._model.logprobs(row) for row in input_ids[:, len(PROMPT) :].tolist()]
        return torch.where(scores.isneginf(), scores, torch.stack(rows))


MODELS = [TinyModel(seed) for seed in (3, 6, 11)]


def make_search(
    params: BeamSearchParams, *, stops: tuple[int, ...] = (EOS,), min_tokens: int = 0
) -> BeamSearch:
    return BeamSearch(params, stop_token_ids=stops, min_tokens=min_tokens)


def steps(search: BeamSearch, model: TinyModel, *, max_tokens: int) -> Iterator[None]:
    """Runs a search to its end, and yields after each step."""
    while not search.is_done:
        candidates = []
        for beam in search.live:
            top = model.logprobs(beam.token_ids).topk(min(search.num_candidates, VOCAB_SIZE))
            candidates.append(Candidates(top.indices.tolist(), top.values.tolist()))
        search.advance(candidates, max_tokens=max_tokens)
        yield


def find(search: BeamSearch, model: TinyModel, *, max_tokens: int) -> list[Hypothesis]:
    for _ in steps(search, model, max_tokens=max_tokens):
        pass
    return search.finished


def transformers_best(
    model: TinyModel,
    params: BeamSearchParams,
    *,
    max_tokens: int,
    stops: tuple[int, ...] = (EOS,),
    min_tokens: int = 0,
) -> list[tuple[list[int], float]]:
    with torch.inference_mode():
        found = model.model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            num_beams=params.width,
            num_return_sequences=params.width,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            max_new_tokens=max_tokens,
            min_new_tokens=min_tokens or None,
            eos_token_id=list(stops) or None,
            pad_token_id=VOCAB_SIZE,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            logits_processor=LogitsProcessorList([SameLogprobs(model)]),
        )
    tokens = [row[len(PROMPT) :].tolist() for row in found.sequences]
    tokens = [[token for token in row if token != VOCAB_SIZE] for row in tokens]
    return list(zip(tokens, found.sequences_scores.tolist(), strict=True))


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.5, 1.0, 2.0])
def test_hypotheses_and_scores_are_those_of_transformers(
    width: int, early_stopping: bool, length_penalty: float
) -> None:
    params = BeamSearchParams(
        width=width, length_penalty=length_penalty, early_stopping=early_stopping
    )
    lengths = set()
    for model, max_tokens in itertools.product(MODELS, (1, 9)):
        found = find(make_search(params), model, max_tokens=max_tokens)
        expected = transformers_best(model, params, max_tokens=max_tokens)
        assert [one.token_ids for one in found] == [tokens for tokens, _ in expected]
        # A score is the sum of one log probability a token, over a power of the length. Both sides
        # add the same float32 numbers, all of one sign: L - 1 roundings. Then each rounds the power
        # and the quotient, which may be a product with a rounded reciprocal: three more.
        for one, (tokens, score) in zip(found, expected, strict=True):
            allowed = 2 * relative_error(len(tokens) - 1 + 3)
            assert one.score == pytest.approx(score, rel=allowed, abs=0)
        lengths |= {len(one.token_ids) for one in found}
    assert length_penalty == 2.0 or lengths - {1, 9}, "some hypotheses end by themselves"


@pytest.mark.parametrize(
    ("stops", "min_tokens"), [((EOS, OTHER_STOP), 0), ((EOS,), 4), ((EOS, OTHER_STOP), 3), ((), 0)]
)
def test_stop_tokens_and_least_length_are_those_of_transformers(
    stops: tuple[int, ...], min_tokens: int
) -> None:
    params = BeamSearchParams(width=3)
    for model in MODELS:
        search = make_search(params, stops=stops, min_tokens=min_tokens)
        found = find(search, model, max_tokens=8)
        expected = transformers_best(
            model, params, max_tokens=8, stops=stops, min_tokens=min_tokens
        )
        assert [one.token_ids for one in found] == [tokens for tokens, _ in expected]


def test_the_search_of_width_one_follows_the_likeliest_token() -> None:
    for model in MODELS:
        (found,) = find(make_search(BeamSearchParams(width=1)), model, max_tokens=6)
        greedy: list[int] = []
        while len(greedy) < 6 and EOS not in greedy:
            greedy.append(int(model.logprobs(greedy).argmax()))
        assert found.token_ids == greedy


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
def test_settled_tokens_are_those_of_the_best_and_come_before_the_end(
    length_penalty: float,
) -> None:
    params = BeamSearchParams(width=3, length_penalty=length_penalty)
    early = 0
    for model in MODELS:
        search, settled = make_search(params), list[int]()
        for _ in steps(search, model, max_tokens=9):
            if not search.is_done:
                settled += search.settled(start=len(settled), max_tokens=9)
        best = search.finished[0]
        assert settled == best.token_ids[: len(settled)]
        early += len(settled)
    assert early


def test_what_is_settled_is_what_all_that_can_win_have_in_common() -> None:
    search = make_search(BeamSearchParams(width=2))
    search.advance([Candidates([1, 2, 3], [-0.1, -5.0, -9.0])], max_tokens=9)
    assert search.settled(start=0, max_tokens=9) == []
    # Both go on from the first beam; the second is left behind.
    search.advance(
        [Candidates([1, 2, 3], [-0.7, -0.8, -9.0]), Candidates([1, 2, 3], [-1.0, -2.0, -9.0])],
        max_tokens=9,
    )
    assert search.settled(start=0, max_tokens=9) == [1]
    assert search.settled(start=1, max_tokens=9) == []
    # One that ends well leaves the others behind for good: at best they score -0.8 / 9.
    search.advance(
        [Candidates([EOS, 2, 3], [0.0, -99.0, -99.0]), Candidates([1, 2, 3], [-99.0] * 3)],
        max_tokens=9,
    )
    assert search.settled(start=1, max_tokens=9) == [1, EOS]


def test_a_hypothesis_that_may_end_soon_can_win_where_length_costs() -> None:
    """What has ended scores -0.5; of the others one would score -0.4, if it ended at once."""
    search = make_search(BeamSearchParams(width=2, length_penalty=-1.0))
    search.advance([Candidates([2, EOS, 3], [-0.2, -0.5, -0.9])], max_tokens=9)
    assert search.finished[0].score == -0.5
    assert search.settled(start=0, max_tokens=9) == []


def test_ties_go_to_the_earlier_beam_and_the_lower_token() -> None:
    search = make_search(BeamSearchParams(width=2))
    search.advance([Candidates([9, 2, 4], [-1.0, -1.0, -1.0])], max_tokens=9)
    assert [beam.token_ids for beam in search.live] == [[2], [4]]
    search.advance([Candidates([3, 2, 1], [-1.0, -1.0, -1.0])] * 2, max_tokens=9)
    assert [beam.token_ids for beam in search.live] == [[2, 1], [2, 2]]


def test_every_token_of_a_hypothesis_has_its_log_probability_and_rank() -> None:
    found, *_ = find(make_search(BeamSearchParams(width=3)), MODELS[0], max_tokens=6)
    for length, (token_id, choice) in enumerate(zip(found.token_ids, found.choices, strict=True)):
        logprobs = MODELS[0].logprobs(found.token_ids[:length])
        assert choice.logprob == logprobs[token_id].item()
        assert choice.rank == int((logprobs >= logprobs[token_id]).sum())
    total = sum(choice.logprob for choice in found.choices)  # in float64; all of one sign
    allowed = relative_error(len(found.choices) - 1)
    assert found.total == pytest.approx(total, rel=allowed, abs=0)
