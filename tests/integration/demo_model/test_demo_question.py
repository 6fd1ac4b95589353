"""What a new user asks: the question of `signalbox demo`, and plain ones in the form of README."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.perplexity import FORMS
from signalbox.llm import LLM, SamplingParams
from signalbox.stack.demo import QUESTION
from tests.transformers_demo import DEMO

pytestmark = pytest.mark.model

FIRST_PAGES = ("README.md", "Makefile", "docs/tutorial/first_server.md")
QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Italy?",
    "What colour is the sky on a clear day?",
    "How many days are in a week?",
    "Who wrote Romeo and Juliet?",
    "What is the largest planet in the solar system?",
    "What do bees make?",
    "What is two plus three?",
    "Name a fruit that is yellow.",
    "What is the boiling point of water?",
    "Why do leaves fall in autumn?",
    "What is a computer?",
    "How does a bicycle work?",
    "What is the opposite of hot?",
    "Which animal barks?",
    "Where does the sun rise?",
    "What is photosynthesis?",
    "Tell me a fact about the Moon.",
    "How do I boil an egg?",
    "What is the longest river in the world?",
    "Who was Albert Einstein?",
    "What should I eat for breakfast?",
    "What is money used for?",
    "What language is spoken in Brazil?",
)
LEAST_MARGIN = 0.5
"""Between the log probabilities of the first two candidates: rounding moves them by up to 0.2."""


@pytest.mark.parametrize(
    "form",
    [{}, {"dtype": "float32"}, {"dtype": "int16"}, FORMS["int4"], FORMS["int8_kv"]],
    ids=["default", "float32", "int16", "int4", "int8_kv"],
)
def test_no_token_of_the_answer_is_a_near_tie(form: dict[str, Any]) -> None:
    asks = SamplingParams(temperature=0, max_tokens=16, logprobs=2)
    with LLM(str(DEMO), device="cpu", kv_cache_memory=0.1, max_model_len=512, **form) as llm:
        (answer,) = llm.chat([{"role": "user", "content": QUESTION}], asks, use_tqdm=False)
    (found,) = answer.outputs
    assert (found.text, found.finish_reason) == ("The capital of South Korea is Seoul.", "stop")
    assert found.logprobs is not None and len(found.logprobs) == len(found.token_ids) == 9
    for candidates in found.logprobs:  # the last is of the end
        first, second = sorted((one.logprob for one in candidates.values()), reverse=True)
        assert first - second > LEAST_MARGIN


def test_the_form_of_the_first_pages_answers_plain_questions_as_float32() -> None:
    """Two may differ: in near-ties each rounding decides."""
    forms = {
        re.findall(r"signalbox (?:serve|demo) \S+ --dtype (\w+)", Path(page).read_text())[0]
        for page in FIRST_PAGES
    }
    assert len(forms) == 1
    asks = SamplingParams(temperature=0, max_tokens=20)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]

    def answers(dtype: str) -> list[list[int]]:
        with LLM(str(DEMO), device="cpu", kv_cache_memory=0.2, dtype=dtype) as llm:
            outputs = llm.chat(chats, asks, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    pairs = zip(answers("float32"), answers(*forms), strict=True)
    assert sum(one == other for one, other in pairs) >= len(QUESTIONS) - 2
