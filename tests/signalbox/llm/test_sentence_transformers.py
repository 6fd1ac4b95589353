"""`LLM` on directories of sentence-transformers, compared with that package on texts."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from transformers import AutoTokenizer

from signalbox import LLM, PoolingParams
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.models.pooling.encoder_models import edit_json, make_texts, save_model

pytestmark = pytest.mark.slow

TEXTS = make_texts(1, 3, 16, 17, 60)
SIZE = 48
CUT = PoolingParams(truncate_prompt_tokens=-1)


def make_llm(path: Path) -> LLM:
    return LLM._from_runner(lambda: make_runner(path, cpu_backend="torch"))


def save(path: Path, **pooling: Any) -> Any:
    """Saves a model with two prompts, of which one is the default; returns it."""
    save_model(path / "model", "bert")
    modules = [st.Transformer(str(path / "model")), st.Pooling(SIZE, **pooling), st.Normalize()]
    model = SentenceTransformer(
        modules=modules,
        device="cpu",
        prompts={"query": "w9 w8 w7 ", "document": "w6 "},
        default_prompt_name="document",
    )
    model.save(str(path / "saved"), create_model_card=False)
    return model


@pytest.mark.parametrize("include_prompt", [True, False])
def test_embeddings_of_texts_are_the_same(include_prompt: bool, tmp_path: Path) -> None:
    model = save(tmp_path, include_prompt=include_prompt)
    texts = [*TEXTS, *make_texts(400)]
    with make_llm(tmp_path / "saved") as llm:
        outputs = llm.embed(texts, pooling_params=CUT, use_tqdm=False)
        (score,) = llm.score(TEXTS[2], TEXTS[3], use_tqdm=False)
    actual = np.array([one.outputs.embedding for one in outputs])
    np.testing.assert_allclose(actual, model.encode(texts), rtol=0, atol=1e-5)
    query, document = model.encode_query(TEXTS[2]), model.encode_document(TEXTS[3])
    assert score.outputs.score == pytest.approx(float(query @ document), abs=1e-5)


def test_declared_dimensions_are_cut_and_normed_again(tmp_path: Path) -> None:
    save(tmp_path)
    edit_json(tmp_path / "saved" / "config.json", matryoshka_dimensions=[16])
    model = SentenceTransformer(str(tmp_path / "saved"), device="cpu", truncate_dim=16)
    with make_llm(tmp_path / "saved") as llm:
        outputs = llm.embed(TEXTS, pooling_params=PoolingParams(dimensions=16), use_tqdm=False)
    actual = np.array([one.outputs.embedding for one in outputs])
    expected = model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_texts_are_put_in_lower_case_and_cut_as_the_directory_says(tmp_path: Path) -> None:
    save(tmp_path)
    folder = tmp_path / "saved"
    settings = {"do_lower_case": True, "max_seq_length": 20}
    edit_json(folder / "sentence_bert_config.json", **settings)
    model = SentenceTransformer(str(folder), device="cpu")
    texts = [*TEXTS, *(text.upper() for text in TEXTS)]
    with make_llm(folder) as llm:
        outputs = llm.embed(texts, pooling_params=CUT, use_tqdm=False)
        with pytest.raises(ValueError, match="at most 20, or truncate_prompt_tokens"):
            llm.embed(TEXTS[-1:], use_tqdm=False)
    assert max(len(one.prompt_token_ids) for one in outputs) == 20
    actual = np.array([one.outputs.embedding for one in outputs])
    np.testing.assert_allclose(actual, model.encode(texts), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(actual[: len(TEXTS)], actual[len(TEXTS) :])


def test_scores_of_pairs_are_the_same(tmp_path: Path) -> None:
    save_model(tmp_path, "bert", "AutoModelForSequenceClassification", num_labels=1)
    model = CrossEncoder(str(tmp_path), device="cpu")
    pairs = [*pairwise(TEXTS), tuple(make_texts(200, 90)), tuple(make_texts(30, 400))]
    with make_llm(tmp_path) as llm:
        queries, documents = zip(*pairs, strict=True)
        outputs = llm.score(list(queries), list(documents), pooling_params=CUT, use_tqdm=False)
    expected = model.predict(pairs)
    np.testing.assert_allclose([one.outputs.score for one in outputs], expected, atol=1e-5)


ROLES = (
    "{% for m in messages %}{% if m.role == 'query' %}w9 {{ m.content }} "
    "{% elif m.role == 'document' %}w8 {{ m.content }} {% endif %}{% endfor %}w6"
)
"""A chat template of a reranker that reads a query and a document."""


@pytest.mark.parametrize("template", [None, ROLES])
def test_scores_by_logits_of_two_tokens_are_the_same(template: str | None, tmp_path: Path) -> None:
    save_model(tmp_path / "plain", "qwen3", "AutoModelForCausalLM")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "plain")
    model = CrossEncoder(str(tmp_path / "plain"), device="cpu")
    model.save(str(tmp_path / "saved"))
    with make_llm(tmp_path / "saved") as llm:
        outputs = llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)
    expected = model.predict([(TEXTS[0], text) for text in TEXTS[1:]])
    np.testing.assert_allclose([one.outputs.score for one in outputs], expected, atol=1e-5)
    assert (outputs[0].prompt_token_ids[0] == 9) is (template is not None)
