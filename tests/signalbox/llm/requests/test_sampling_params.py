"""Sampling parameters through `LLM` and the engines, over the simulated model."""

import itertools
from typing import Any

import pytest

from signalbox import (
    LLM,
    AsyncLLMEngine,
    EngineArgs,
    LLMEngine,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_contract.sampling_defaults import DefaultParams, SamplingDefaults
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.signalbox.llm.make import (
    GREEDY,
    assert_at_rest,
    assert_expected,
    greedy,
    make_async_engine,
    make_engine,
    make_llm,
    run,
)
from tests.simulated_model import expected_tokens

PROMPT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def prompt_logprobs(output: RequestOutput) -> list[tuple[int, float, int]]:
    """Token, log probability and rank of each token of the prompt but the first."""
    assert output.prompt_logprobs is not None
    first, *others = output.prompt_logprobs
    assert first is None
    assert len(others) == len(output.prompt_token_ids) - 1
    pairs = zip(output.prompt_token_ids[1:], filter(None, others), strict=True)
    return [(token, one[token].logprob, one[token].rank) for token, one in pairs]


def test_allowed_tokens_and_bad_words_bound_what_is_generated(llm: LLM) -> None:
    encode = llm._controlled.model.tokenizer.encode_blocking
    allowed = [encode(char, add_special_tokens=False)[0] for char in "ab"]
    params = greedy(allowed_token_ids=allowed)
    (either,) = llm.generate([PROMPT], params, use_tqdm=False)
    assert set(either.outputs[0].text) <= {"a", "b"}
    assert "a" in either.outputs[0].text
    params.bad_words = ["a"]
    (other,) = llm.generate([PROMPT], params, use_tqdm=False)
    assert set(other.outputs[0].text) == {"b"}


def test_a_sequence_with_nothing_left_to_draw_fails_alone(llm: LLM) -> None:
    stuck = SamplingParams(temperature=0, allowed_token_ids=[5], min_tokens=3)
    stuck.stop_token_ids = [5]
    bad, good = llm.generate([PROMPT, PROMPT], [stuck, GREEDY], use_tqdm=False)
    assert bad.error == "every token is suppressed"
    assert_expected(good)


def test_a_prompt_is_truncated_before_it_is_measured() -> None:
    with make_llm(max_model_len=32) as llm:
        long_prompt = [7] * 100 + PROMPT
        kept = greedy(truncate_prompt_tokens=10)
        (output,) = llm.generate([long_prompt], kept, use_tqdm=False)
        assert output.prompt_token_ids == PROMPT
        kept.truncate_prompt_tokens = -1
        (output,) = llm.generate([long_prompt], kept, use_tqdm=False)
        assert len(output.prompt_token_ids) == 31


@pytest.mark.parametrize("max_num_batched_tokens", [2048, 3])
def test_prompt_logprobs_do_not_depend_on_chunks_or_the_cache(max_num_batched_tokens: int) -> None:
    asks = greedy(prompt_logprobs=2, n=2, max_tokens=4)
    with make_llm() as llm:
        (plain,) = llm.generate([PROMPT], asks, use_tqdm=False)
    with make_llm(
        block_size=2, max_num_seqs=3, max_num_batched_tokens=max_num_batched_tokens
    ) as llm:
        for _ in range(2):  # the second finds all of its prompt in the cache
            (output,) = llm.generate([PROMPT], asks, use_tqdm=False)
            assert prompt_logprobs(output) == prompt_logprobs(plain)
            assert output.usage.cached_tokens == 0
        assert all(len(one) >= 2 for one in filter(None, output.prompt_logprobs or ()))
        (unasked,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
        assert unasked.prompt_logprobs is None
        assert unasked.usage.cached_tokens > 0


class CountingRunner(SimulatedRunner):
    """Counts the prompt tokens whose log probabilities it is asked for."""

    num_asked = 0

    def execute(self, batch: Batch) -> BatchOutput:
        if batch.prompt_rows is not None:
            self.num_asked += len(batch.prompt_rows.targets)
        return super().execute(batch)


def test_a_recompute_does_not_ask_for_the_prompt_again() -> None:
    asks = greedy(prompt_logprobs=0, max_tokens=24)
    prompts = [[i, *PROMPT] for i in range(4)]
    with make_llm() as llm:
        expected = [prompt_logprobs(one) for one in llm.generate(prompts, asks, use_tqdm=False)]
    config = SimulatedConfig(block_size=2, num_gpu_blocks=40, num_cpu_blocks=0)
    runner = CountingRunner(config)
    with LLM._from_runner(lambda: runner) as llm:
        outputs = llm.generate(prompts, asks, use_tqdm=False)
        assert llm.llm_engine._core.scheduler.preemption.num_preemptions > 0
    assert [prompt_logprobs(one) for one in outputs] == expected
    assert runner.num_asked == sum(len(prompt) - 1 for prompt in prompts)
    for output in outputs:
        assert_expected(output, 24)


def test_deltas_join_to_the_whole_and_the_end_comes_alone(engine: LLMEngine) -> None:
    delta = greedy(output_kind=RequestOutputKind.DELTA)
    final = greedy(output_kind=RequestOutputKind.FINAL_ONLY)
    engine.add_request("whole", None, GREEDY, PROMPT)
    engine.add_request("delta", None, delta, PROMPT)
    engine.add_request("final", None, final, PROMPT)
    outputs = run(engine)
    whole = outputs["whole"][-1].outputs[0]
    deltas = [one.outputs[0] for one in outputs["delta"]]
    (only,) = [one.outputs[0] for one in outputs["final"]]
    assert "".join(one.text for one in deltas) == only.text == whole.text
    assert [t for one in deltas for t in one.token_ids] == only.token_ids == whole.token_ids
    assert len(deltas) > 1


async def test_the_async_engine_streams_deltas() -> None:
    engine = make_async_engine()
    params = greedy(output_kind=RequestOutputKind.DELTA)
    tokens = []
    async for output in engine.generate({"prompt_token_ids": PROMPT}, params):
        tokens += output.outputs[0].token_ids
    assert tokens == expected_tokens(PROMPT, num_tokens=16)
    engine.shutdown()


def test_requests_of_different_salts_share_no_cached_prefix(llm: LLM) -> None:
    text = "a prefix of several blocks " * 8

    def cached(salt: str) -> int:
        (output,) = llm.generate({"prompt": text, "cache_salt": salt}, GREEDY, use_tqdm=False)
        return output.usage.cached_tokens

    assert [cached(salt) > 0 for salt in ("one", "two", "one", "")] == [0, 0, 1, 0]
    with pytest.raises(ValueError, match="cache_salt"):
        cached("x" * 129)
    with pytest.raises(TypeError, match="cache_salt"):
        cached(5)  # type: ignore[arg-type]


def test_drafts_may_be_refused_or_come_from_a_prediction() -> None:
    engine = make_engine()
    for params in (greedy(), greedy(speculation=False), greedy(prediction="ab")):
        engine.add_request(str(engine.get_num_unfinished_requests()), "x", params)
    asked = [group.request for group in engine.scheduler.waiting]
    assert [one.no_speculation for one in asked] == [False, True, False]
    ids = engine._core.model.tokenizer.encode_blocking("ab", add_special_tokens=False)
    assert [one.prediction for one in asked] == [(), (), tuple(ids)]
    with pytest.raises(ValueError, match=r"prediction: .*at most"):
        engine.add_request("long", "x", greedy(prediction="ab" * 5000))


def test_special_tokens_are_added_unless_the_prompt_says_no(llm: LLM, monkeypatch: Any) -> None:
    tokenizer = llm._controlled.model.tokenizer
    asked: list[bool] = []
    encode = tokenizer.encode_blocking

    def noting(text: str, *, add_special_tokens: bool) -> list[int]:
        asked.append(add_special_tokens)
        return encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode_blocking", noting)
    prompts = [{"prompt": "a"}, {"prompt": "a", "add_special_tokens": False}]
    llm.generate(prompts, GREEDY, use_tqdm=False)
    assert asked == [True, False]


@pytest.mark.parametrize(("interval", "most"), [(1, 20), (5, 5), (100, 2)])
def test_an_interval_makes_fewer_outputs_that_end_in_the_same(interval: int, most: int) -> None:
    params = greedy(max_tokens=20)
    with make_engine(CoreConfig(stream_interval=interval)) as engine:
        engine.add_request("a", "Hello", params)
        outputs = run(engine)["a"]
        assert_at_rest(engine)
    assert 2 <= len(outputs) <= most
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert len(outputs[-1].outputs[0].token_ids) == 20
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    assert all(b - a >= interval for a, b in itertools.pairwise(lengths[:-1]))


def test_an_interval_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="stream_interval is 0"):
        EngineArgs(model="m", stream_interval=0)


def test_a_request_without_parameters_takes_the_models_and_given_ones_stay() -> None:
    defaults = SamplingDefaults(
        model=DefaultParams(temperature=0.5, repetition_penalty=1.5),
        override=DefaultParams(temperature=0.25, max_tokens=3),
    )
    with make_llm(sampling_defaults=defaults) as llm:
        engine = llm.llm_engine
        expected = SamplingParams(temperature=0.25, repetition_penalty=1.5, max_tokens=3)
        assert engine.default_params == llm.get_default_sampling_params() == expected
        llm.get_default_sampling_params().temperature = 1.5  # a copy
        assert llm.get_default_sampling_params() == engine.get_default_sampling_params() == expected
        (short,) = llm.generate("Hello")
        assert len(short.outputs[0].token_ids) <= 3
        given = engine._core.params.resolve(SamplingParams(max_tokens=None), num_prompt_tokens=10)
        assert (given.sampling.temperature, given.sampling.repetition_penalty) == (1.0, 1.0)
        assert given.max_tokens == engine._core.model.max_model_len - 10
        assert_at_rest(engine)
        async_engine = AsyncLLMEngine(engine._core)
        assert async_engine.get_default_sampling_params() == expected
    with make_llm() as llm:
        assert llm.llm_engine.default_params == SamplingParams()


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_how_many_log_probabilities_there_may_be_is_the_engines_to_say(name: str) -> None:
    every, many = (SamplingParams(**{name: count}) for count in (-1, 21))  # type: ignore[arg-type]
    with make_llm() as llm:
        for one in (every, many):
            with pytest.raises(ValueError, match=f"{name} is .*at most max_logprobs, 20"):
                llm.generate("hello", one, use_tqdm=False)
    with make_llm(CoreConfig(max_logprobs=None)) as llm:
        outputs = llm.generate(["hello"] * 2, [every, many], use_tqdm=False)
        found = [
            output.outputs[0].logprobs if name == "logprobs" else output.prompt_logprobs
            for output in outputs
        ]
        lengths = [len(positions[-1] or ()) for positions in found if positions]
        assert lengths[0] == 512 and lengths[1] in (21, 22)
        beyond = SamplingParams(**{name: 513})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"{name} is 513; .* at most 512, the vocabulary"):
            llm.generate("hello", beyond, use_tqdm=False)
        assert_at_rest(llm.llm_engine)


def test_as_many_sequences_and_stops_as_vllms_users_ask_for(llm: LLM) -> None:
    params = SamplingParams(n=64, stop=[f"#{i}#" for i in range(64)], max_tokens=4, ignore_eos=True)
    (output,) = llm.generate("hello", params, use_tqdm=False)
    assert [len(one.token_ids) for one in output.outputs] == [4] * 64


def test_options_of_a_structure_are_refused_by_name_unless_they_say_nothing() -> None:
    neutral: dict[str, Any] = {
        "whitespace_pattern": None, "structural_tag": None,
        "disable_any_whitespace": False, "disable_additional_properties": False,
    }  # fmt: skip
    outputs = StructuredOutputsParams(json={"type": "array"}, **neutral)
    assert SamplingParams(structured_outputs=outputs).fields()["structured_output"] == (
        "json_schema", '{"type": "array"}'
    )  # fmt: skip
    for name in neutral:
        with pytest.raises(ValueError, match=f"structured_outputs.{name} is not served"):
            StructuredOutputsParams(regex="a", **{name: "x"})
    for nothing in ({}, {"json": None}, {"json_object": False}):
        with pytest.raises(ValueError, match="exactly one constraint; got none"):
            StructuredOutputsParams(**nothing)
    with pytest.raises(TypeError, match="jsn"):
        StructuredOutputsParams(jsn={})  # type: ignore[call-arg]
