"""Drafts change nothing: tokens, log probabilities, logits and blocks are the same bits without."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.structured_output.scope import Scope
from signalbox_worker.sampling import grammar_masks
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.builders import make_runner as make_simulated
from tests.gpu_worker.draft_loops import (
    MOST,
    Loop,
    Oracle,
    Wanted,
    assert_drafts_change_nothing,
    make_byte_grammars,
)
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.tiny_models import make_llama
from tests.native_kernels import skip_without_native_kernels

VOCAB = 300
FEW = tuple(range(97, 104))
"""Tokens of sequences that may draw few, so that rules about runs of tokens apply."""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model whose tokens are bytes, and others that only decode."""
    skip_without_native_kernels()
    path: Path = tmp_path_factory.mktemp("bytes")
    make_llama(path, vocab_size=VOCAB, num_hidden_layers=2)
    return make_runner(path, cpu_backend="native", block_size=16, num_threads=1)


@pytest.fixture(scope="module")
def grammars(native: Any) -> Iterator[Grammars]:
    found = make_byte_grammars(native, VOCAB)
    yield found
    found.close()


TOKENS = st.sampled_from(FEW)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=40)
RULES = {
    "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    "top_k": st.sampled_from([0, 1, 5]),
    "top_p": st.sampled_from([1.0, 0.9, 0.3]),
    "min_p": st.sampled_from([0.0, 0.1]),
    "typical_p": st.sampled_from([1.0, 0.6]),
    "seed": st.integers(0, (1 << 64) - 1),
    "presence_penalty": st.sampled_from([0.0, 0.0, 0.5, -1.0]),
    "frequency_penalty": st.sampled_from([0.0, 0.0, 0.3, -0.5]),
    "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    "min_tokens": st.integers(0, 12),
    "stop_token_ids": st.lists(TOKENS, max_size=2, unique=True).map(tuple),
    "logit_bias": st.lists(
        st.tuples(TOKENS, st.sampled_from([-2.0, 3.0])), max_size=2, unique_by=lambda pair: pair[0]
    ).map(tuple),
    "bad_words": st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=4).map(
        tuple
    ),
    "allowed_token_ids": st.sampled_from([(), FEW, FEW]),
}
LOGPROBS = st.sampled_from(
    [
        {},
        {"num_logprobs": 0},
        {"num_logprobs": 3, "num_prompt_logprobs": 2},
        {"num_logprobs": 0, "logprob_token_ids": FEW},
    ]
)
NUMBER_OF_LETTERS = ("regex", "[a-g]{2,9}(xyz)?")
GRAMMARS = st.sampled_from(
    [
        {"structured_output": NUMBER_OF_LETTERS},
        {"structured_output": ("choice", "yes", "no", "abacabadabacaba")},
        {"structured_output": ("json_object",)},
        {"structured_output": ("json_schema", '{"properties":{"name":{"type":"string"}}}')},
        {
            "structured_output": NUMBER_OF_LETTERS,
            "constraint_scope": Scope(
                marker_token_ids=(97, 99), is_repeated=True, is_leading=False, is_required=False
            ),
        },
        {
            "structured_output": NUMBER_OF_LETTERS,
            "constraint_scope": Scope(
                is_open=True, closing_token_ids=(98,), max_reasoning_tokens=5
            ),
        },
        {
            "structured_output": NUMBER_OF_LETTERS,
            "constraint_scope": Scope(opening_token_ids=(123,), closing_token_ids=(125,)),
        },
    ]
)


@st.composite
def requests(draw: st.DrawFn, *, with_grammars: bool = False) -> Wanted:
    fields = {name: draw(values) for name, values in RULES.items()} | draw(LOGPROBS)
    if with_grammars and draw(st.booleans()):
        fields |= draw(GRAMMARS) | {"allowed_token_ids": (), "bad_words": ()}
    params = SamplingParams(**fields)
    return Wanted(
        prompt=draw(PROMPTS),
        params=params,
        num_samples=draw(st.sampled_from([1, 1, 3])),
        returns_logits=draw(st.booleans()),
    )


@settings(max_examples=15)
@given(wanted=st.lists(requests(), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_simulated_worker_draws_the_same(wanted: list[Wanted], seed: int) -> None:
    runner = make_simulated(
        block_size=16, num_gpu_blocks=200, max_model_len=256, max_num_batched_tokens=512
    )
    assert_drafts_change_nothing(runner, wanted, seed=seed)


@settings(max_examples=15)
@given(wanted=st.lists(requests(), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_a_model_draws_the_same_under_any_parameters(
    native: Any, wanted: list[Wanted], seed: int
) -> None:
    assert_drafts_change_nothing(native, wanted, seed=seed)


@settings(max_examples=15)
@given(
    wanted=st.lists(requests(with_grammars=True), min_size=1, max_size=4), seed=st.integers(0, 99)
)
def test_a_model_draws_the_same_under_grammars(
    native: Any, grammars: Grammars, wanted: list[Wanted], seed: int
) -> None:
    assert_drafts_change_nothing(native, wanted, seed=seed, grammars=grammars)


def test_a_run_ends_where_no_time_is_left_for_masks(
    native: Any, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_masks, "MAX_DRAFT_CPU_S", -1.0)
    params = SamplingParams(structured_output=NUMBER_OF_LETTERS, num_logprobs=0)
    without = Loop(native, grammars=grammars)
    expected = without.generate([Wanted(prompt=[97], params=params)], num_tokens=12)
    ended = Loop(native, grammars=grammars, proposer=Oracle(without.texts()))
    found = ended.generate([Wanted(prompt=[97], params=params)], num_tokens=12, limit=lambda: MOST)
    assert found == expected
    assert ended.num_steps == without.num_steps
    assert ended.num_drafts
