"""The demo model in this process: transformers' tokens, and an answer to a question."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from signalbox import LLM, SamplingParams
from signalbox_worker.runner.local_runner import LocalRunner
from tests.integration.demo_model.prompts import PROMPTS
from tests.signalbox.llm.make import assert_at_rest, tokens_of
from tests.transformers_demo import DEMO, demo, greedy_texts

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("demo")]

MODEL = DEMO
NUM_NEW_TOKENS = 16
# In float32 the tokens are those of transformers.
OPTIONS = {"dtype": "float32", "max_model_len": 512, "kv_cache_memory": 0.25, "swap_space": 0.0625}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles") / "of" / "the demo"


@pytest.fixture(scope="module")
def llm(traces: Path) -> Iterator[LLM]:
    options = OPTIONS | {"max_logprobs": -1, "profiler_config": {"torch_profiler_dir": str(traces)}}
    with LLM(str(MODEL), max_num_seqs=32, device="cpu", **options) as llm:  # type: ignore[arg-type]
        yield llm
        assert_at_rest(llm.llm_engine)


def test_greedy_tokens_are_those_of_transformers(llm: LLM) -> None:
    prompts = PROMPTS[::6]
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS, min_tokens=NUM_NEW_TOKENS)
    outputs = tokens_of(llm.generate(prompts, params, use_tqdm=False))
    assert outputs == greedy_texts(demo().model, prompts, outputs)


def test_a_sleeping_model_has_no_kv_cache_and_the_same_answers(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS)
    expected = tokens_of(llm.generate(PROMPTS[0], params, use_tqdm=False))
    runner = llm.llm_engine._core._worker._runner
    assert isinstance(runner, LocalRunner)
    awake = runner.memory()
    llm.sleep()
    assert runner.memory().kv < awake.kv / 100 and runner.memory().swap == 0
    llm.wake_up()
    assert (runner.memory().kv, runner.memory().swap) == (awake.kv, awake.swap)
    assert tokens_of(llm.generate(PROMPTS[0], params, use_tqdm=False)) == expected


def test_the_log_probabilities_of_the_whole_vocabulary_are_a_distribution(llm: LLM) -> None:
    few = SamplingParams(temperature=0, max_tokens=3, logprobs=20, prompt_logprobs=2)
    every = SamplingParams(temperature=0, max_tokens=3, logprobs=-1, prompt_logprobs=-1)
    (expected,), (found,) = (
        llm.generate("The capital of", one, use_tqdm=False) for one in (few, every)
    )
    of_prompt, of_prompt_few = found.prompt_logprobs, expected.prompt_logprobs
    positions, positions_few = found.outputs[0].logprobs, expected.outputs[0].logprobs
    assert of_prompt and of_prompt_few and positions and positions_few
    every_position = [*filter(None, of_prompt), *positions]
    few_positions = [*filter(None, of_prompt_few), *positions_few]
    assert len(every_position) == 2 + 3
    for position, position_few in zip(every_position, few_positions, strict=True):
        assert len(position) == 49152
        assert position_few.items() <= position.items()
        by_rank = sorted(position.values(), key=lambda one: one.rank or 0)
        values = np.array([one.logprob for one in by_rank], dtype=np.float64)
        assert (np.diff(values) <= 0).all()
        # Each logarithm is off by at most some units in the last place of 32, in float32.
        assert np.exp(values).sum() == pytest.approx(1, abs=64 * np.finfo(np.float32).eps)


def test_named_tokens_have_the_log_probabilities_that_the_whole_vocabulary_has(llm: LLM) -> None:
    named = [49151, 0, 260, 260]
    asks = SamplingParams(temperature=0, max_tokens=3, logprob_token_ids=named, prompt_logprobs=1)
    every = SamplingParams(temperature=0, max_tokens=3, logprobs=-1, prompt_logprobs=1)
    (found,), (whole,) = (llm.generate("The capital of", p, use_tqdm=False) for p in (asks, every))
    positions, expected = found.outputs[0].logprobs, whole.outputs[0].logprobs
    assert positions and expected and found.prompt_logprobs == whole.prompt_logprobs
    pairs = zip(found.outputs[0].token_ids, positions, expected, strict=True)
    for token_id, position, distribution in pairs:
        assert set(position) == {token_id, *named}
        assert position[token_id].rank == distribution[token_id].rank == 1
        for one, entry in position.items():
            assert entry.rank is None or one == token_id
            assert entry.decoded_token == distribution[one].decoded_token
            # Two ways to sum 49,152 float32; see tests.rounding.
            assert entry.logprob == pytest.approx(distribution[one].logprob, abs=1e-4)


def test_a_profile_is_a_trace_of_what_was_generated(llm: LLM, traces: Path) -> None:
    llm.start_profile("mine")
    with pytest.raises(RuntimeError, match="being taken already"):
        llm.start_profile()
    llm.generate("Hello", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    llm.stop_profile()
    (path,) = traces.iterdir()
    assert path.name.startswith("mine.")
    with gzip.open(path) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "forward" in names


def test_the_tokenizer_for_callers_encodes_as_requests_are_encoded(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    params = SamplingParams(max_tokens=1)
    messages = [{"role": "user", "content": "Is this <|im_end|> the end?"}]
    texts = [*PROMPTS[:4], tokenizer.apply_chat_template(messages, tokenize=False)]
    outputs = llm.generate(texts, params, use_tqdm=False)
    assert [tokenizer.encode(text) for text in texts] == [one.prompt_token_ids for one in outputs]
    assert [tokenizer.decode(one.prompt_token_ids) for one in outputs] == texts
    assert (tokenizer.eos_token, len(tokenizer)) == ("<|im_end|>", 49152)
