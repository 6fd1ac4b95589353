"""What a client asks for, as the scheduler gets it, and what comes back for it."""

from grpc import StatusCode

from signalbox_contract.columns import unpack_float32, unpack_int32
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from tests.grpc_errors import code_of
from tests.router.fakes import (
    BOS,
    MAX_MODEL_LEN,
    finished,
    ids_of,
    step,
    token,
)
from tests.router.stack import Outputs, drafting, make_stack, saying, text_of


async def test_every_sampling_parameter_reaches_the_scheduler() -> None:
    asked = pb.SamplingParams(
        presence_penalty=0.5,
        frequency_penalty=-1.5,
        repetition_penalty=1.25,
        typical_p=0.75,
        logit_bias=[pb.LogitBias(token_id=9, bias=-100), pb.LogitBias(token_id=4, bias=0.5)],
        allowed_token_ids=[4, 9, 10],
        bad_words=["Paris", " naïve"],
        prompt_logprobs=3,
        prediction="Paris, Berlin",
    )
    async with make_stack(saying("x")) as stack:
        await stack.generate(sampling_params=asked)
        params = stack.scheduler.added[0].sampling_params
        assert list(stack.scheduler.added[0].prediction) == ids_of("Paris, Berlin")
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -1.5)
    assert (params.repetition_penalty, params.typical_p) == (1.25, 0.75)
    assert unpack_int32(params.logit_bias_token_ids).tolist() == [9, 4]
    assert unpack_float32(params.logit_biases).tolist() == [-100, 0.5]
    assert unpack_int32(params.allowed_token_ids).tolist() == [4, 9, 10]
    assert params.num_prompt_logprobs == 3
    words = [unpack_int32(run.token_ids).tolist() for run in params.bad_words]
    assert words == [ids_of(text) for text in ("Paris", " Paris", "naïve", " naïve")]


async def test_what_is_not_asked_for_is_neutral() -> None:
    async with make_stack(saying("x")) as stack:
        await stack.generate()
        request = stack.scheduler.added[0]
        params = request.sampling_params
        assert not request.prediction and not request.no_speculation
    assert (params.presence_penalty, params.frequency_penalty) == (0, 0)
    assert (params.repetition_penalty, params.typical_p) == (1, 1)
    assert not (params.logit_biases or params.allowed_token_ids or params.bad_words)
    assert not params.HasField("num_prompt_logprobs")


async def test_a_request_may_refuse_drafts_and_is_told_what_became_of_them() -> None:
    async with make_stack(drafting(num_runs=2, num_drafts=5, num_accepted=3)) as stack:
        *_, last = await stack.generate()
        told = last.usage.speculation
        assert (told.num_runs, told.num_drafts, told.num_accepted) == (2, 5, 3)
        *_, last = await stack.generate(sampling_params=pb.SamplingParams(speculation=False))
        assert not last.usage.HasField("speculation")


async def test_a_prediction_fits_the_window() -> None:
    params = pb.SamplingParams(prediction="Die Hauptstadt " * MAX_MODEL_LEN)
    async with make_stack(saying("x")) as stack:
        assert await code_of(stack.generate(sampling_params=params)) is StatusCode.INVALID_ARGUMENT
        assert not stack.scheduler.added


async def test_a_prompt_is_truncated_to_its_last_tokens() -> None:
    long_text = "Die Hauptstadt " * 500
    async with make_stack(saying("x")) as stack:
        await stack.generate(text=long_text, truncate_prompt_tokens=5)
        await stack.generate(token_ids=pb.TokenIds(ids=range(4, 250)), truncate_prompt_tokens=2)
        await stack.generate(text="Paris", truncate_prompt_tokens=MAX_MODEL_LEN)
        beyond = stack.generate(text="a", truncate_prompt_tokens=MAX_MODEL_LEN + 1)
        assert await code_of(beyond) is StatusCode.INVALID_ARGUMENT
        prompts = [list(add.prompt_token_ids) for add in stack.scheduler.added]
    assert prompts == [ids_of(long_text)[-5:], [248, 249], [token(BOS), *ids_of("Paris")]]


async def test_an_echo_is_the_prompt_before_the_output() -> None:
    async with make_stack(saying(" is", " nice")) as stack:
        answers = await stack.generate(text="Paris", echo=True)
        outputs = [output for answer in answers for output in answer.outputs]
        assert "".join(output.text for output in outputs) == "Paris is nice"
        ids = [token_id for output in outputs for token_id in output.token_ids]
        assert ids == [token(BOS), *ids_of("Paris"), *ids_of(" is"), *ids_of(" nice")]
        generated = len(ids_of(" is")) + len(ids_of(" nice"))
        assert answers[-1].usage.completion_tokens == generated


async def test_an_echo_leaves_logprobs_to_the_generated_tokens() -> None:
    row = common_pb2.TokenLogprobs(row=0, logprob=-1.5, rank=2)

    def script(add: scheduler_pb2.Request) -> Outputs:
        yield step((add.handle, 0, [token("a")]), logprobs=[row], **finished(add.handle))

    async with make_stack(script) as stack:
        asked = pb.SamplingParams(logprobs=0)
        (answer,) = await stack.generate(text="Paris", echo=True, sampling_params=asked)
        assert [one.sampled.text for one in answer.outputs[0].logprobs] == ["a"]


async def test_output_comes_whole_at_the_end_or_grows() -> None:
    async with make_stack(saying("a", "b", "c")) as stack:
        (final,) = await stack.generate(output_kind=pb.OUTPUT_KIND_FINAL_ONLY)
        assert final.outputs[0].text == "abc"
        assert final.usage.completion_tokens == 3
        grown = await stack.generate(output_kind=pb.OUTPUT_KIND_CUMULATIVE)
        assert grown[-1].outputs[0].text == "abc"
        assert all("abc".startswith(answer.outputs[0].text) for answer in grown)


async def test_an_interval_makes_fewer_messages() -> None:
    async with make_stack(saying(*"abcdefgh")) as stack:
        answers = await stack.generate(stream_interval=100)
        assert text_of(answers) == "abcdefgh"
        assert len(answers) <= 2


def prompt_run(
    handle: int, *, first: int, count: int, num_top: int = 1
) -> scheduler_pb2.RequestUpdates:
    """Log probabilities of a run of the prompt; each is the negative of its position."""
    rows = [
        common_pb2.TokenLogprobs(
            row=i,
            logprob=-first - i,
            rank=2,
            top_token_ids=[token("!")] * num_top,
            top_logprobs=[-0.5] * num_top,
        )
        for i in range(count)
    ]
    one = scheduler_pb2.PromptLogprobs(handle=handle, first_position=first, logprobs=rows)
    return scheduler_pb2.RequestUpdates(prompt_logprobs=[one])


async def test_prompt_logprobs_come_once_in_the_first_message() -> None:
    def script(add: scheduler_pb2.Request) -> Outputs:
        yield prompt_run(add.handle, first=1, count=2)
        # a scheduler that begins again repeats nothing to the client
        yield prompt_run(add.handle, first=1, count=3)
        last = step((add.handle, 0, ids_of("x")), **finished(add.handle))
        last.MergeFrom(prompt_run(add.handle, first=4, count=1))
        yield step((add.handle, 0, ids_of("a")))
        yield last

    async with make_stack(script) as stack:
        asked = pb.SamplingParams(prompt_logprobs=1)
        prompt = pb.TokenIds(ids=[4, 5, 6, 7])
        answers = await stack.generate(token_ids=prompt, sampling_params=asked)
        first, *others = answers
        found = [(one.sampled.token_id, one.sampled.logprob) for one in first.prompt_logprobs]
        assert found == [(5, -1), (6, -2), (7, -3)]
        assert [one.top[0].text for one in first.prompt_logprobs] == ["!"] * 3
        assert not any(answer.prompt_logprobs for answer in others)


async def test_a_long_prompts_logprobs_fit_what_a_client_takes_by_default() -> None:
    length = 16_000

    def script(add: scheduler_pb2.Request) -> Outputs:
        yield prompt_run(add.handle, first=1, count=length - 1, num_top=20)
        yield step((add.handle, 0, ids_of("x")), **finished(add.handle))

    async with make_stack(script, max_model_len=2 * length) as stack:
        asked = pb.SamplingParams(prompt_logprobs=20)
        prompt = pb.TokenIds(ids=[5] * length)
        answers = await stack.generate(token_ids=prompt, sampling_params=asked)
    assert sum(answer.ByteSize() for answer in answers) > 4 << 20
    assert max(answer.ByteSize() for answer in answers) < 1 << 20
    found = [one for answer in answers for one in answer.prompt_logprobs]
    assert [one.sampled.logprob for one in found] == [-i for i in range(1, length)]
    assert {len(one.top) for one in found} == {20}
    with_output = [i for i, answer in enumerate(answers) if answer.outputs]
    with_logprobs = [i for i, answer in enumerate(answers) if answer.prompt_logprobs]
    assert min(with_output) >= max(with_logprobs)
