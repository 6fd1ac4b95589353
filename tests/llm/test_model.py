"""The demo model in this process: transformers' tokens, and an answer to a question."""

from collections.abc import Iterator

import pytest

from signalbox import LLM, AsyncLLMEngine, EngineArgs, SamplingParams
from tests.integration.prompts import PROMPTS
from tests.llm.make import assert_at_rest, tokens_of
from tests.transformers_demo import DEMO, demo, greedy_texts

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

MODEL = DEMO
NUM_NEW_TOKENS = 16
OPTIONS = {"dtype": "float32", "max_model_len": 512, "kv_cache_memory": 0.25, "swap_space": 0.0625}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(MODEL), max_num_seqs=32, device="cpu", **OPTIONS) as llm:  # type: ignore[arg-type]
        yield llm
        assert_at_rest(llm.llm_engine)


def test_greedy_tokens_are_those_of_transformers(llm: LLM) -> None:
    prompts = PROMPTS[::6]
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS, min_tokens=NUM_NEW_TOKENS)
    outputs = tokens_of(llm.generate(prompts, params, use_tqdm=False))
    assert outputs == greedy_texts(demo().model, prompts, outputs)


def test_chat_answers_a_question(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0, max_tokens=32)
    (output,) = llm.chat(messages, params, use_tqdm=False)
    (completion,) = output.outputs
    assert "Paris" in completion.text
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert "<|im_end|>" not in completion.text


def test_a_stop_string_ends_the_text(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=32, stop="Paris")
    (output,) = llm.generate("Q: What is the capital of France?\nA:", params, use_tqdm=False)
    assert "Paris" not in output.outputs[0].text
    assert output.outputs[0].stop_reason == "Paris"


async def test_the_async_engine_streams_the_same_text(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS)
    (whole,) = llm.generate("Once upon a time", params, use_tqdm=False)
    args = EngineArgs(model=str(MODEL), max_num_seqs=4, device="cpu", **OPTIONS)  # type: ignore[arg-type]
    engine = AsyncLLMEngine.from_engine_args(args)
    outputs = [output async for output in engine.generate("Once upon a time", params)]
    assert outputs[-1].outputs[0].text == whole.outputs[0].text
    assert all(whole.outputs[0].text.startswith(output.outputs[0].text) for output in outputs)
    await engine.shutdown()
