"""Embeddings, classes and scores of `LLM`, over the simulated model that pools."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from signalbox import LLM, PoolingParams, PromptType, SamplingParams
from signalbox_contract import pooling
from signalbox_router.generation.pooling.activations import normalized
from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING
from tests.signalbox.llm.make import assert_at_rest, make_llm
from tests.simulated_model import expected_vector

MEAN, RERANK = SIMULATED_POOLING["mean"], SIMULATED_POOLING["rerank"]
BOTH_WAYS = SIMULATED_POOLING["bidirectional"]
COLBERT = SIMULATED_POOLING["token_embed"]
CLASSES = replace(RERANK, num_outputs=3, activation="softmax")
RAW = PoolingParams(use_activation=False)
PER_TOKEN = pooling.PoolingParams(is_per_token=True)


def make_pooling_llm(model: Any = MEAN, **changes: Any) -> LLM:
    return make_llm(pooling=model, **changes)


def test_embeddings_are_those_of_each_prompt() -> None:
    with make_pooling_llm() as llm:
        prompts: list[PromptType] = ["hello", [5, 6, 7]]
        outputs = llm.embed(prompts, use_tqdm=False)
        for output in outputs:
            expected = normalized(expected_vector(output.prompt_token_ids, model=MEAN))
            np.testing.assert_array_equal(np.array(output.outputs.embedding, np.float32), expected)
            assert output.outputs.hidden_size == MEAN.num_outputs
        assert outputs[1].prompt_token_ids == [5, 6, 7]
        assert_at_rest(llm.llm_engine)


def test_declared_dimensions_are_cut_before_the_last_function() -> None:
    with make_pooling_llm() as llm:
        (output,) = llm.embed("hello", pooling_params=PoolingParams(dimensions=8), use_tqdm=False)
        whole = expected_vector(output.prompt_token_ids, model=MEAN)
        np.testing.assert_array_equal(
            np.array(output.outputs.embedding, np.float32), normalized(whole[:8])
        )
        for call in (llm.embed, partial(llm.score, "hi")):
            with pytest.raises(ValueError, match=r"dimensions: allowed: 8, 16.*; given: 5"):
                call("hello", pooling_params=PoolingParams(dimensions=5))
        assert_at_rest(llm.llm_engine)


def test_encode_returns_what_the_model_makes() -> None:
    with make_pooling_llm(CLASSES) as llm:
        (raw,) = llm.encode("hello", RAW, use_tqdm=False)
        (classes,) = llm.classify("hello", use_tqdm=False)
        expected = expected_vector(raw.prompt_token_ids, model=CLASSES)
        np.testing.assert_array_equal(raw.outputs.data, expected)
        assert sum(classes.outputs.probs) == pytest.approx(1)
        assert np.argmax(classes.outputs.probs) == np.argmax(expected)


@pytest.mark.parametrize("model", [BOTH_WAYS, COLBERT])
def test_each_token_has_a_vector_of_length_1(model: pooling.PoolingModel) -> None:
    with make_pooling_llm(model) as llm:
        prompts: list[PromptType] = ["hello", [5, 6]]
        a, b = llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)
        (raw,) = llm.encode("hello", RAW, pooling_task="token_embed", use_tqdm=False)
        for params, output in ((RAW, raw), (None, a), (None, b)):
            made = expected_vector(output.prompt_token_ids, model=model, params=PER_TOKEN)
            made = made.reshape(len(output.prompt_token_ids), 8)
            expected = made if params is RAW else normalized(made)
            np.testing.assert_array_equal(output.outputs.data, expected)
        with pytest.raises(ValueError, match="dimensions: allowed: 8; given: 16"):
            cut = PoolingParams(dimensions=16)
            llm.encode("a", cut, pooling_task="token_embed", use_tqdm=False)
        if model is COLBERT:
            (score,) = llm.score("hello", "other", use_tqdm=False)
            (other,) = llm.encode("other", use_tqdm=False)
            products = a.outputs.data @ other.outputs.data.T
            assert score.outputs.score == pytest.approx(products.max(axis=1).sum(), rel=1e-6)
            with pytest.raises(ValueError, match="embed: the model does not embed"):
                llm.embed("a")
        assert_at_rest(llm.llm_engine)


def test_a_reranker_scores_each_pair() -> None:
    with make_pooling_llm(RERANK) as llm:
        outputs = llm.score("a query", ["one", "two"], pooling_params=RAW, use_tqdm=False)
        again = llm.score(["a query", "other"], ["one", "two"], pooling_params=RAW, use_tqdm=False)
    assert outputs[0].outputs.score == again[0].outputs.score
    assert outputs[1].outputs.score != again[1].outputs.score


def test_scores_of_embeddings_are_cosines() -> None:
    with make_pooling_llm() as llm:
        a, b = llm.embed(["a", "b"], use_tqdm=False)
        same, other = llm.score("a", ["a", "b"], use_tqdm=False)
    assert same.outputs.score == pytest.approx(1, abs=1e-6)
    expected = np.dot(a.outputs.embedding, b.outputs.embedding)
    assert other.outputs.score == pytest.approx(expected, abs=1e-6)


def test_a_call_that_the_model_does_not_serve_says_what_it_does() -> None:
    with make_pooling_llm() as llm:
        with pytest.raises(ValueError, match="classify: the model does not classify"):
            llm.classify("a")
        with pytest.raises(ValueError, match="'token_classify' is not served"):
            llm.encode("a", pooling_task="token_classify")
        with pytest.raises(ValueError, match="the model does not token_embed"):
            llm.encode("a", pooling_task="token_embed")
        with pytest.raises(ValueError, match="makes embeddings"):
            llm.generate("a")
        neutral = PoolingParams(requires_token_ids=False, extra_kwargs={}, step_tag_id=None)
        assert len(llm.embed("hello", pooling_params=neutral, use_tqdm=False)) == 1
        with pytest.raises(ValueError, match=r"pooling_params\.extra_kwargs is not"):
            llm.embed("hello", pooling_params=PoolingParams(extra_kwargs={"a": 1}))
        with pytest.raises(TypeError, match="give PoolingParams"):
            llm.embed("a", pooling_params=SamplingParams())  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError, match="classify"):
            llm.reward(["a"])
        assert_at_rest(llm.llm_engine)
    with make_llm() as llm:
        for call in (llm.embed, llm.encode, llm.classify):
            with pytest.raises(ValueError, match="runner='pooling'"):
                call("a")
        with pytest.raises(ValueError, match="runner='pooling'"):
            llm.score("a", "b")


def test_a_long_prompt_is_cut_only_if_asked() -> None:
    with make_pooling_llm(max_model_len=16) as llm:
        with pytest.raises(ValueError, match="maximum context length is 16"):
            llm.embed("a" * 40)
        cut = PoolingParams(truncate_prompt_tokens=-1)
        (output,) = llm.embed("a" * 40, pooling_params=cut, use_tqdm=False)
        assert len(output.prompt_token_ids) == 16
        assert_at_rest(llm.llm_engine)
