"""`LLM.beam_search` and `best_of` over the simulated model."""

from collections.abc import Iterator

import pytest

from signalbox import LLM, BeamSearchParams, LLMEngine, SamplingParams
from signalbox_worker.runner.loading.byte_tokenizer import END_OF_SEQUENCE_ID
from tests.integration.test_beams import found
from tests.signalbox.llm.make import assert_at_rest, make_async_engine, make_llm, run

PROMPTS = [[i, i + 1, i + 2] for i in range(6)]
PARAMS = BeamSearchParams(beam_width=3, max_tokens=12)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with make_llm(num_gpu_blocks=60) as llm:
        yield llm
        assert_at_rest(llm.llm_engine)


@pytest.mark.parametrize("concurrency_limit", [None, 4])
def test_hypotheses_have_vllms_shape(llm: LLM, concurrency_limit: int | None) -> None:
    params = BeamSearchParams(
        beam_width=4, max_tokens=30, include_stop_str_in_output=True, length_penalty=0.5
    )
    outputs = llm.beam_search(PROMPTS, params, concurrency_limit=concurrency_limit)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = found(
            prompt, width=4, max_tokens=30, stops=[END_OF_SEQUENCE_ID], length_penalty=0.5
        )
        assert [one.tokens for one in output.sequences] == [prompt + e.token_ids for e in expected]
        for one, hypothesis in zip(output.sequences, expected, strict=True):
            assert one.score == hypothesis.score
            assert one.cum_logprob == pytest.approx(hypothesis.total, abs=1e-4)
            assert [list(position) for position in one.logprobs] == [
                [token_id] for token_id in hypothesis.token_ids
            ]
            ends = hypothesis.token_ids[-1] == END_OF_SEQUENCE_ID
            assert one.finish_reason == ("stop" if ends else "length")


def test_the_end_of_sequence_is_left_out_unless_it_is_asked_for(llm: LLM) -> None:
    def sequences(*, include: bool) -> list[list[int]]:
        params = BeamSearchParams(
            beam_width=8, max_tokens=40, length_penalty=-1.0, include_stop_str_in_output=include
        )
        return [s.tokens for o in llm.beam_search(PROMPTS, params) for s in o.sequences]

    ended = [tokens for tokens in sequences(include=True) if tokens[-1] == END_OF_SEQUENCE_ID]
    assert ended
    without = sequences(include=False)
    assert all(END_OF_SEQUENCE_ID not in tokens for tokens in without)
    assert all(tokens[:-1] in without for tokens in ended)


def test_the_text_is_that_of_prompt_and_hypothesis(llm: LLM) -> None:
    (output,) = llm.beam_search("a prompt", PARAMS)
    for one in output.sequences:
        assert one.text is not None
        assert one.text.startswith("a prompt")
        assert len(one.text) > len("a prompt")


def test_the_old_parameters_search_too(llm: LLM) -> None:
    (searched,) = llm.beam_search([PROMPTS[0]], PARAMS)
    params = SamplingParams(
        n=2, best_of=3, use_beam_search=True, temperature=0, max_tokens=12, early_stopping=False
    )
    (output,) = llm.generate(prompt_token_ids=[PROMPTS[0]], sampling_params=params, use_tqdm=False)
    assert [one.score for one in output.outputs] == [one.score for one in searched.sequences[:2]]
    assert output.usage.completion_tokens == sum(len(one.token_ids) for one in output.outputs)


def test_best_of_returns_the_best_and_counts_all(llm: LLM) -> None:
    def generate(**fields: int) -> list[tuple[list[int], float | None]]:
        params = SamplingParams(seed=3, max_tokens=6, ignore_eos=True, **fields)
        (output,) = llm.generate(prompt_token_ids=[[1, 2]], sampling_params=params, use_tqdm=False)
        assert output.usage.completion_tokens == 5 * 6
        assert [one.index for one in output.outputs] == list(range(len(output.outputs)))
        if "logprobs" not in fields:
            assert all(one.logprobs is None for one in output.outputs)
            return [(one.token_ids, one.score) for one in output.outputs]
        return [(one.token_ids, (one.cumulative_logprob or 0) / 6) for one in output.outputs]

    drawn = sorted(generate(n=5, logprobs=0), key=lambda one: -(one[1] or 0))
    assert generate(n=2, best_of=5) == drawn[:2]


def test_engines_search_beside_other_requests(engine: LLMEngine) -> None:
    engine.add_request("beams", None, PARAMS, prompt_token_ids=PROMPTS[0])
    engine.add_request("other", "a prompt", SamplingParams(max_tokens=30))
    finished = {name: outputs[-1] for name, outputs in run(engine).items()}
    expected = found(PROMPTS[0], width=3, max_tokens=12, stops=[END_OF_SEQUENCE_ID])
    assert [one.token_ids for one in finished["beams"].outputs] == [
        one.token_ids for one in expected
    ]
    assert finished.keys() == {"beams", "other"}


async def test_streams_of_a_search_only_grow() -> None:
    engine = make_async_engine(step_ns=1_000_000)
    params = BeamSearchParams(beam_width=3, max_tokens=40, ignore_eos=True)
    outputs = [o async for o in engine.beam_search({"prompt_token_ids": PROMPTS[1]}, None, params)]
    best = outputs[-1].outputs[0]
    assert outputs[-1].finished
    for output in outputs:
        tokens = output.outputs[0].token_ids
        assert tokens == best.token_ids[: len(tokens)]
    assert any(0 < len(output.outputs[0].token_ids) < 40 for output in outputs)
    assert_at_rest(engine)
    engine.shutdown()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"beam_width": 0}, "sampling_params.n"),
        ({"beam_width": 33}, "beam_search.width"),
        ({"temperature": 0.5}, "temperature"),
        ({"length_penalty": 9.0}, "length_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_search_that_cannot_be_served_is_refused_by_name(
    fields: dict[str, float], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 65}, "best_of"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "logprobs": 1}, "logprobs"),
        ({"use_beam_search": True, "n": 3, "best_of": 2}, "sampling_params.n"),
    ],
)
def test_sampling_params_of_beams_are_checked(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SamplingParams(**fields)  # type: ignore[arg-type]
