"""What a request gets over gRPC, and what the scheduler gets of it."""

import asyncio

import pytest

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from tests.router.fakes import (
    BOS,
    EOS,
    IM_END,
    IM_START,
    MAX_MODEL_LEN,
    finished,
    ids_of,
    step,
    token,
)
from tests.router.stack import Outputs, Stack, make_stack, saying, text_of


async def test_text_streams_and_the_last_message_carries_usage() -> None:
    async with make_stack(saying(" Paris", " is", " nice")) as stack:
        answers = await stack.generate(request_id="mine")
        text = text_of(answers)
        assert text == " Paris is nice"
        assert {answer.request_id for answer in answers} == {"mine"}
        assert [answer.HasField("usage") for answer in answers][-1:] == [True]
        assert not any(answer.HasField("usage") for answer in answers[:-1])
        last = answers[-1]
        assert last.outputs[0].finish.reason == pb.FINISH_REASON_LENGTH
        assert last.usage.prompt_tokens == 7
        assert last.usage.cached_tokens == 3
        assert last.usage.completion_tokens == sum(
            len(o.token_ids) for a in answers for o in a.outputs
        )
        assert last.timings.decode.ToNanoseconds() == 3_000_000_004
        assert last.timings.time_to_first_token.ToNanoseconds() > 0
        assert stack.scheduler.aborted == []


async def test_a_request_reaches_the_scheduler_resolved() -> None:
    async with make_stack(saying("x")) as stack:
        await stack.generate(
            text="Paris",
            sampling_params=pb.SamplingParams(
                temperature=1e-6, top_k=5, seed=2**64 - 1, stop_token_ids=[9], logprobs=None, n=1
            ),
        )
        (add,) = stack.scheduler.added
        assert list(add.prompt_token_ids) == [token(BOS), *ids_of("Paris")]
        assert add.max_tokens == MAX_MODEL_LEN - len(add.prompt_token_ids)
        assert add.num_sequences == 1
        assert not add.HasField("timeout_ns")
        params = add.sampling_params
        assert (params.temperature, params.top_p, params.top_k) == (0.0, 1.0, 5)
        assert params.seed == 2**64 - 1
        assert list(params.stop_token_ids) == [9, token(EOS)]
        assert not params.HasField("num_logprobs")


async def test_token_ids_are_passed_on_as_they_are() -> None:
    async with make_stack(saying("x")) as stack:
        await stack.generate(token_ids=pb.TokenIds(ids=[5, 6, 7]))
        assert list(stack.scheduler.added[0].prompt_token_ids) == [5, 6, 7]


async def test_chat_uses_the_models_template() -> None:
    async with make_stack(saying("Paris")) as stack:
        parts = [pb.ContentPart(text="Capital"), pb.ContentPart(text="of France?")]
        turn = pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=parts)
        request = pb.ChatRequest(messages=[turn])
        answers = [answer async for answer in stack.client.Chat(request)]
        assert answers[-1].outputs[0].text == "Paris"
        assert list(stack.scheduler.added[0].prompt_token_ids) == [
            token(IM_START),
            *ids_of("user\nCapital\nof France?<|im_end|>\n<|im_start|>assistant\n"),
        ]


async def test_sequences_of_one_request_stream_beside_each_other() -> None:
    def script(add: scheduler_pb2.Request) -> Outputs:
        yield step(*((add.handle, i, ids_of(f" {i}")) for i in range(3)))
        yield step(**finished(add.handle, num_sequences=3))

    async with make_stack(script) as stack:
        answers = await stack.generate(sampling_params=pb.SamplingParams(n=3))
        texts = {0: "", 1: "", 2: ""}
        for answer in answers:
            for output in answer.outputs:
                texts[output.index] += output.text
        assert texts == {0: " 0", 1: " 1", 2: " 2"}


async def test_one_step_serves_many_requests(stack: Stack) -> None:
    calls = [asyncio.create_task(stack.generate(request_id=f"r{i}")) for i in range(20)]
    await stack.added(20)
    names = {add.handle: add.request_id for add in stack.scheduler.added}
    ends = [finished(handle) for handle in names]
    stack.scheduler.send(
        step(
            *((handle, 0, ids_of(name)) for handle, name in names.items()),
            sequences=[end for one in ends for end in one["sequences"]],
            requests=[end for one in ends for end in one["requests"]],
        )
    )
    for answers in await asyncio.gather(*calls):
        assert answers[-1].outputs[0].text == answers[-1].request_id


async def test_logprobs_carry_text_and_ranks() -> None:
    row = common_pb2.TokenLogprobs(
        row=1, logprob=-1.5, rank=2, top_token_ids=[token("!"), token("a")], top_logprobs=[-1, -1.5]
    )

    def script(add: scheduler_pb2.Request) -> Outputs:
        runs = (999, 0, [3]), (add.handle, 0, [token("a")])
        yield step(*runs, logprobs=[row], **finished(add.handle))

    async with make_stack(script) as stack:
        (answer,) = await stack.generate(sampling_params=pb.SamplingParams(logprobs=2))
        (logprobs,) = answer.outputs[0].logprobs
        assert (logprobs.sampled.text, logprobs.sampled.rank) == ("a", 2)
        assert [(one.text, one.rank) for one in logprobs.top] == [("!", 1), ("a", 2)]


@pytest.mark.parametrize("stop", ["END", IM_END, f".{IM_END}"])  # special tokens have no text
async def test_a_stop_string_stops_the_sequence_at_the_scheduler(stop: str) -> None:
    token_ids = ids_of(f"so. {stop} now")
    kept = len(ids_of(f"so. {stop}"))
    async with make_stack(
        lambda add: [step((add.handle, 0, [token_id])) for token_id in token_ids]
    ) as stack:
        answers = await stack.generate(sampling_params=pb.SamplingParams(stop=[stop]))
        text = text_of(answers)
        finish = [o.finish for a in answers for o in a.outputs if o.HasField("finish")]
        assert text == "so. "
        assert [(one.reason, one.stop) for one in finish] == [(pb.FINISH_REASON_STOP_STRING, stop)]
        assert stack.scheduler.stopped == [(stack.scheduler.added[0].handle, 0, kept)]
        assert answers[-1].usage.completion_tokens == kept
