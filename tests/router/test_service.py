"""The router over gRPC, with a scheduler that does what the tests say."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc
from protos.scheduler.v1 import scheduler_pb2, stats_pb2
from protos.worker.v1 import worker_pb2
from router.admission import MAX_TIMEOUT_NS, EncodedPrompt, timeout_ns
from router.config import RouterConfig
from router.load_client import MAX_AGE_S, LoadClient
from router.main import Router
from router.servicer import SERVICE_NAME
from rpc.errors import Unavailable
from tests.router.fakes import (
    BOS,
    EOS,
    IM_START,
    MAX_MODEL_LEN,
    MODEL_NAME,
    WAIT_S,
    FakeScheduler,
    bytewise_ids,
    finished,
    ids_of,
    make_files,
    request_finished,
    step,
    token,
)

StatusCode = grpc.StatusCode
Outputs = Iterable[scheduler_pb2.StepOutputs]


class Stack:
    """A router between a fake scheduler and a client."""

    def __init__(self, scheduler: FakeScheduler, router: Router, address: str) -> None:
        self.scheduler = scheduler
        self.router = router
        self.address = address
        self.channel = grpc.aio.insecure_channel(address)
        self.client = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def wait_serving(self, serving: bool = True) -> None:
        wanted = health_pb2.HealthCheckResponse.SERVING
        async with asyncio.timeout(WAIT_S):
            async for answer in self.health.Watch(
                health_pb2.HealthCheckRequest(service=SERVICE_NAME)
            ):
                if (answer.status == wanted) is serving:
                    return

    async def generate(self, **fields: Any) -> list[pb.GenerateResponse]:
        return [message async for message in self.client.Generate(make_generate(**fields))]

    async def check_nothing_is_left(self) -> None:
        await eventually(
            lambda: not self.router.admission.num_live and not self.router.schedulers.num_live
        )


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is watched sets no event
            await asyncio.sleep(0.005)


def make_generate(**fields: Any) -> pb.GenerateRequest:
    if "token_ids" not in fields:
        fields.setdefault("text", "The capital of France is")
    return pb.GenerateRequest(**fields)


def make_config(scheduler_address: str, **changes: Any) -> RouterConfig:
    fields: dict[str, Any] = {
        "port": 0,
        "scheduler_addresses": (scheduler_address,),
        "model_poll_s": 0.05,
    }
    return RouterConfig(**fields | changes)


@contextlib.asynccontextmanager
async def make_stack(
    script: Callable[[scheduler_pb2.AddRequest], Outputs] = lambda add: (),
    *,
    files: dict[str, bytes] | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    **config: Any,
) -> AsyncIterator[Stack]:
    scheduler = FakeScheduler(script)
    scheduler.files = files or scheduler.files
    scheduler.max_model_len = max_model_len
    address = await scheduler.start()
    router = Router(make_config(address, **config))
    port = await router.start()
    stack = Stack(scheduler, router, f"127.0.0.1:{port}")
    try:
        await stack.wait_serving()
        yield stack
        await stack.check_nothing_is_left()
    finally:
        await stack.channel.close()
        await router.drain(grace_s=0)
        await router.stop()
        await scheduler.stop()


def saying(*texts: str) -> Callable[[scheduler_pb2.AddRequest], Outputs]:
    """Returns a script that answers with one step for each text."""

    def script(add: scheduler_pb2.AddRequest) -> Outputs:
        for text in texts[:-1]:
            yield step((add.handle, 0, ids_of(text)))
        yield step((add.handle, 0, ids_of(texts[-1])), **finished(add.handle))

    return script


async def code_of(call: Any) -> StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


def details_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    packed = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    return status_pb2.Status.FromString(packed)


async def test_text_streams_and_the_last_message_carries_usage() -> None:
    async with make_stack(saying(" Paris", " is", " nice")) as stack:
        answers = await stack.generate(request_id="mine")
        text = "".join(output.text for answer in answers for output in answer.outputs)
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
        parts = [pb.ContentPart(text="Capital "), pb.ContentPart(text="of France?")]
        turn = pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=parts)
        request = pb.ChatRequest(messages=[turn])
        answers = [answer async for answer in stack.client.Chat(request)]
        assert answers[-1].outputs[0].text == "Paris"
        assert list(stack.scheduler.added[0].prompt_token_ids) == [
            token(IM_START),
            *ids_of("user\nCapital of France?<|im_end|>\n<|im_start|>assistant\n"),
        ]


async def test_chat_without_a_template_is_a_failed_precondition() -> None:
    async with make_stack(files=make_files(chat_template=None)) as stack:
        turn = pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=[pb.ContentPart(text="Hi")])
        call = aiter(stack.client.Chat(pb.ChatRequest(messages=[turn])))
        assert await code_of(anext(call)) is StatusCode.FAILED_PRECONDITION
        assert not (await stack.client.GetModel(pb.GetModelRequest())).has_chat_template


async def test_sequences_of_one_request_stream_beside_each_other() -> None:
    def script(add: scheduler_pb2.AddRequest) -> Outputs:
        yield step(*((add.handle, i, ids_of(f" {i}")) for i in range(3)))
        ends = [
            scheduler_pb2.SequenceFinished(
                handle=add.handle, index=i, reason=scheduler_pb2.FINISH_REASON_LENGTH
            )
            for i in range(3)
        ]
        yield step(sequences=ends, requests=[request_finished(add.handle)])

    async with make_stack(script) as stack:
        answers = await stack.generate(sampling_params=pb.SamplingParams(n=3))
        texts = {0: "", 1: "", 2: ""}
        for answer in answers:
            for output in answer.outputs:
                texts[output.index] += output.text
        assert texts == {0: " 0", 1: " 1", 2: " 2"}


async def test_one_step_serves_many_requests() -> None:
    async with make_stack() as stack:
        calls = [asyncio.create_task(stack.generate(request_id=f"r{i}")) for i in range(20)]
        await stack.scheduler.wait_until(lambda: len(stack.scheduler.added) == 20)
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
    row = worker_pb2.TokenLogprobs(
        row=1, logprob=-1.5, rank=2, top_token_ids=[token("!"), token("a")], top_logprobs=[-1, -1.5]
    )

    def script(add: scheduler_pb2.AddRequest) -> Outputs:
        runs = (999, 0, [3]), (add.handle, 0, [token("a")])
        yield step(*runs, logprobs=[row], **finished(add.handle))

    async with make_stack(script) as stack:
        (answer,) = await stack.generate(sampling_params=pb.SamplingParams(logprobs=2))
        (logprobs,) = answer.outputs[0].logprobs
        assert (logprobs.sampled.text, logprobs.sampled.rank) == ("a", 2)
        assert [(one.text, one.rank) for one in logprobs.top] == [("!", 1), ("a", 2)]


async def test_a_stop_string_stops_the_sequence_at_the_scheduler() -> None:
    async with make_stack(
        lambda add: [step((add.handle, 0, [token_id])) for token_id in bytewise_ids("so. END now")]
    ) as stack:
        answers = await stack.generate(sampling_params=pb.SamplingParams(stop=["END"]))
        text = "".join(output.text for answer in answers for output in answer.outputs)
        finish = [o.finish for a in answers for o in a.outputs if o.HasField("finish")]
        assert text == "so. "
        assert [(one.reason, one.stop) for one in finish] == [(pb.FINISH_REASON_STOP_STRING, "END")]
        assert stack.scheduler.stopped == [(stack.scheduler.added[0].handle, 0, 7)]
        assert answers[-1].usage.completion_tokens == 7


async def test_cancelling_aborts() -> None:
    async with make_stack(lambda add: [step((add.handle, 0, ids_of("x")))]) as stack:
        call = stack.client.Generate(make_generate())
        async for _ in call:
            break
        call.cancel()
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.aborted))
        assert stack.scheduler.aborted == [stack.scheduler.added[0].handle]


async def test_a_client_that_disconnects_aborts() -> None:
    async with make_stack() as stack:
        channel = grpc.aio.insecure_channel(stack.address, options=[("x", 1)])
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(make_generate())
        reading = asyncio.ensure_future(anext(aiter(call)))
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.added))
        await channel.close()
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.aborted))
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_deadline_travels_and_aborts() -> None:
    async with make_stack() as stack:
        call = aiter(stack.client.Generate(make_generate(), timeout=2.0))
        assert await code_of(anext(call)) is StatusCode.DEADLINE_EXCEEDED
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.aborted))
        # gRPC rounds up, and reads a coarse clock.
        assert 1e9 < stack.scheduler.added[0].timeout_ns < 3e9


async def test_a_deadline_of_a_millisecond_leaves_nothing() -> None:
    async with make_stack() as stack:
        for _ in range(20):
            call = aiter(stack.client.Generate(make_generate(), timeout=0.001))
            assert await code_of(anext(call)) is StatusCode.DEADLINE_EXCEEDED
        await stack.check_nothing_is_left()
        added = {add.handle for add in stack.scheduler.added}
        await stack.scheduler.wait_until(lambda: added == set(stack.scheduler.aborted))


async def test_the_id_of_a_live_request_is_taken() -> None:
    async with make_stack() as stack:
        first = asyncio.create_task(stack.generate(request_id="a"))
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.added))
        assert await code_of(stack.generate(request_id="a")) is StatusCode.ALREADY_EXISTS
        handle = stack.scheduler.added[0].handle
        stack.scheduler.send(step((handle, 0, ids_of("ok")), **finished(handle)))
        assert (await first)[-1].outputs[0].text == "ok"
        stack.scheduler.script = saying("again")
        assert (await stack.generate(request_id="a"))[-1].outputs[0].text == "again"


async def test_too_many_requests_are_shed_with_retry_info() -> None:
    async with make_stack(max_live_requests=1) as stack:
        call = stack.client.Generate(make_generate())
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.added))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate()
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        (detail,) = details_of(caught.value).details
        assert detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)
        call.cancel()


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"text": ""}, StatusCode.INVALID_ARGUMENT, "text"),
        ({"text": "a b " * 200}, StatusCode.INVALID_ARGUMENT, "text"),
        ({"text": "a" * 3_000_000}, StatusCode.INVALID_ARGUMENT, "text"),
        ({"text": "a" * (5 << 20)}, StatusCode.RESOURCE_EXHAUSTED, None),
        ({"token_ids": pb.TokenIds()}, StatusCode.INVALID_ARGUMENT, "token_ids.ids"),
        ({"token_ids": pb.TokenIds(ids=[10**6])}, StatusCode.INVALID_ARGUMENT, "token_ids.ids"),
        ({"token_ids": pb.TokenIds(ids=[5] * 128)}, StatusCode.INVALID_ARGUMENT, "token_ids.ids"),
        ({"request_id": "a\nb"}, StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"request_id": "a\0b"}, StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"request_id": "a" * 10**6}, StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"model": "../../etc/passwd"}, StatusCode.NOT_FOUND, None),
        (
            {"truncate_prompt_tokens": 0},
            StatusCode.INVALID_ARGUMENT,
            "truncate_prompt_tokens",
        ),
        ({"stream_interval": 0}, StatusCode.INVALID_ARGUMENT, "stream_interval"),
        ({"output_kind": 9}, StatusCode.INVALID_ARGUMENT, "output_kind"),
        (
            {"sampling_params": pb.SamplingParams(top_p=0)},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.top_p",
        ),
        (
            {"sampling_params": pb.SamplingParams(presence_penalty=2.5)},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.presence_penalty",
        ),
        (
            {"sampling_params": pb.SamplingParams(bad_words=[" "])},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.bad_words",
        ),
        (
            {"sampling_params": pb.SamplingParams(logit_bias=[pb.LogitBias(token_id=10**6)])},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.logit_bias.token_id",
        ),
        (
            {"sampling_params": pb.SamplingParams(structured_output=pb.StructuredOutput())},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.structured_output",
        ),
        (
            {
                "sampling_params": pb.SamplingParams(
                    structured_output=pb.StructuredOutput(json_schema='{"$ref": "#"}')
                )
            },
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.structured_output.json_schema",
        ),
        (
            {"sampling_params": pb.SamplingParams(max_tokens=MAX_MODEL_LEN)},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.max_tokens",
        ),
    ],
)
async def test_what_is_wrong_is_refused_at_the_door(
    fields: dict[str, Any], code: StatusCode, field: str | None
) -> None:
    async with make_stack() as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate(**fields)
        assert caught.value.code() is code
        if field is not None:
            bad = error_details_pb2.BadRequest()
            details_of(caught.value).details[0].Unpack(bad)
            assert [violation.field for violation in bad.field_violations] == [field]
        assert stack.scheduler.added == []


USER = pb.CHAT_ROLE_USER
HELLO = [pb.ContentPart(text="Hi")]


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([], StatusCode.INVALID_ARGUMENT),
        ([pb.ChatMessage(content=HELLO)], StatusCode.INVALID_ARGUMENT),
        ([pb.ChatMessage(role=77, content=HELLO)], StatusCode.INVALID_ARGUMENT),  # type: ignore[arg-type]
        ([pb.ChatMessage(role=USER)], StatusCode.INVALID_ARGUMENT),
        ([pb.ChatMessage(role=USER, content=[pb.ContentPart()])], StatusCode.INVALID_ARGUMENT),
        ([pb.ChatMessage(role=USER, content=HELLO)] * 500, StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_bad_conversation_is_refused(
    messages: list[pb.ChatMessage], code: StatusCode
) -> None:
    async with make_stack() as stack:
        call = aiter(stack.client.Chat(pb.ChatRequest(messages=messages)))
        assert await code_of(anext(call)) is code
        assert stack.scheduler.added == []


async def test_malformed_bytes_are_an_invalid_argument() -> None:
    async with make_stack() as stack:
        for data in (b"", b"\xff" * 50, b"\x1a\x05ab", b"\x0a\x02\xff\xfe"):
            for method in ("Generate", "Chat"):
                send: Any = stack.channel.unary_stream(f"/{SERVICE_NAME}/{method}")
                call = aiter(send(data))
                assert await code_of(anext(call)) is StatusCode.INVALID_ARGUMENT


async def test_a_request_that_the_scheduler_refuses_fails_with_its_status() -> None:
    def script(add: scheduler_pb2.AddRequest) -> Outputs:
        end = request_finished(
            add.handle, code=8, message="never fits", retry_after_ns=1_500_000_000
        )
        yield step(requests=[end])

    async with make_stack(script) as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate()
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "never fits"
        retry = error_details_pb2.RetryInfo()
        assert details_of(caught.value).details[0].Unpack(retry)
        assert retry.retry_delay.ToNanoseconds() == 1_500_000_000


async def test_a_failed_sequence_is_the_status_of_a_request_of_one() -> None:
    def script(add: scheduler_pb2.AddRequest) -> Outputs:
        error = scheduler_pb2.SequenceFinished(
            handle=add.handle, reason=scheduler_pb2.FINISH_REASON_ERROR, error_message="NaN"
        )
        yield step(sequences=[error])
        yield step(requests=[request_finished(add.handle, code=13, message="NaN")])

    async with make_stack(script) as stack:
        assert await code_of(stack.generate()) is StatusCode.INTERNAL


async def test_a_broken_stream_ends_its_requests_and_is_mended() -> None:
    async with make_stack(resume_wait_s=0.0) as stack:
        call = asyncio.create_task(stack.generate())
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.added))
        stack.scheduler.end_stream()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert details_of(caught.value).details[0].Is(error_details_pb2.RetryInfo.DESCRIPTOR)
        await stack.wait_serving()
        stack.scheduler.script = saying("back")
        assert (await stack.generate())[-1].outputs[0].text == "back"
        assert stack.scheduler.num_tokenizer_calls == 1  # the same tokenizer is kept


async def test_columns_that_make_no_sense_break_the_stream_only() -> None:
    async with make_stack() as stack:
        call = asyncio.create_task(stack.generate())
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.added))
        stack.scheduler.send(scheduler_pb2.StepOutputs(handles=b"abc"))
        assert await code_of(call) is StatusCode.UNAVAILABLE
        await stack.wait_serving()


async def test_a_killed_scheduler_turns_health_until_it_is_back() -> None:
    async with make_stack() as stack:
        await stack.scheduler.stop()
        await stack.wait_serving(False)
        assert await code_of(stack.generate()) is StatusCode.UNAVAILABLE
        assert await code_of(stack.client.GetModel(pb.GetModelRequest())) is StatusCode.UNAVAILABLE
        await stack.scheduler.start()
        await stack.wait_serving()


async def test_health_follows_the_last_worker() -> None:
    async with make_stack(saying("x")) as stack:
        stack.scheduler.has_worker = False
        await stack.wait_serving(False)
        assert await code_of(stack.generate()) is StatusCode.UNAVAILABLE
        stack.scheduler.model_name = "other"
        stack.scheduler.has_worker = True
        await stack.wait_serving()
        assert (await stack.client.GetModel(pb.GetModelRequest())).name == "other"
        await stack.generate(model="other")


async def test_the_router_waits_visibly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scheduler = FakeScheduler()
    scheduler.has_worker = False
    address = await scheduler.start()
    await scheduler.stop()
    router = Router(RouterConfig(port=0, scheduler_addresses=(address,)))
    stack = Stack(scheduler, router, f"127.0.0.1:{await router.start()}")
    try:
        await stack.wait_serving(False)
        assert await code_of(stack.generate()) is StatusCode.UNAVAILABLE
        await wait_for_log(caplog, f"waiting for the scheduler at {address}")
        await scheduler.start()
        await wait_for_log(caplog, "waiting for a worker to register")
        scheduler.has_worker = True
        await stack.wait_serving()
        assert f"serving {MODEL_NAME}" in caplog.text
    finally:
        await stack.channel.close()
        await router.drain(grace_s=0)
        await router.stop()
        await scheduler.stop()


async def wait_for_log(caplog: pytest.LogCaptureFixture, text: str) -> None:
    await eventually(lambda: text in caplog.text)


async def test_a_client_that_does_not_read_is_aborted_and_one_that_reads_is_not() -> None:
    async with make_stack(max_unread_tokens=50_000) as stack:
        reader = asyncio.create_task(stack.generate(request_id="reads"))
        call = stack.client.Generate(make_generate(request_id="does not"))
        await stack.scheduler.wait_until(lambda: len(stack.scheduler.added) == 2)
        handles = {add.request_id: add.handle for add in stack.scheduler.added}
        run = ids_of(" Paris") * 1_000
        num_steps = 0
        async with asyncio.timeout(60):
            while not stack.scheduler.aborted:
                stack.scheduler.send(step(*((handle, 0, run) for handle in handles.values())))
                num_steps += 1
                await asyncio.sleep(0.002)
        assert stack.scheduler.aborted == [handles["does not"]]
        stack.scheduler.send(step(**finished(handles["reads"])))
        answers = await reader
        tokens = sum(len(output.token_ids) for answer in answers for output in answer.outputs)
        assert tokens == num_steps * len(run)
        call.cancel()


async def test_a_model_that_changes_while_a_prompt_is_tokenised_gets_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with make_stack(saying("x")) as stack:
        tokenizing = asyncio.Event()
        go_on = asyncio.Event()

        async def tokenize(asked: object, model: object) -> EncodedPrompt:
            tokenizing.set()
            await go_on.wait()
            return EncodedPrompt([5])

        monkeypatch.setattr(stack.router.admission, "tokenize", tokenize)
        call = asyncio.create_task(stack.generate())
        await tokenizing.wait()
        stack.scheduler.model_name = "other"
        await eventually(lambda: stack.router.schedulers.model.name == "other")
        go_on.set()
        assert await code_of(call) is StatusCode.UNAVAILABLE
        assert stack.scheduler.added == []


async def test_tokenizer_files_that_cannot_be_read_are_waited_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    scheduler = FakeScheduler()
    good, scheduler.files = scheduler.files, {"tokenizer.json": b"no tokenizer"}
    router = Router(make_config(await scheduler.start()))
    stack = Stack(scheduler, router, f"127.0.0.1:{await router.start()}")
    try:
        await wait_for_log(caplog, "waiting for a usable model")
        scheduler.files = good
        await stack.wait_serving()
    finally:
        await stack.channel.close()
        await router.drain(grace_s=0)
        await router.stop()
        await scheduler.stop()


async def test_tokenize_and_detokenize_are_inverse() -> None:
    async with make_stack() as stack:
        text = "naïve 東京 😀"
        tokens = await stack.client.Tokenize(pb.TokenizeRequest(text=text))
        assert tokens.token_ids[0] == token(BOS)
        ids = list(tokens.token_ids)
        back = await stack.client.Detokenize(pb.DetokenizeRequest(token_ids=ids))
        assert back.text == text
        whole = pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=False)
        assert (await stack.client.Detokenize(whole)).text == BOS + text
        bare = pb.TokenizeRequest(text=text, add_special_tokens=False)
        assert list((await stack.client.Tokenize(bare)).token_ids) == ids[1:]


async def test_tokenize_and_detokenize_refuse_what_generate_refuses() -> None:
    async with make_stack() as stack:
        tokenize, detokenize = stack.client.Tokenize, stack.client.Detokenize
        too_long = pb.TokenizeRequest(text="a" * 3_000_000)
        assert await code_of(tokenize(too_long)) is StatusCode.INVALID_ARGUMENT
        unknown = pb.TokenizeRequest(text="a", model="other")
        assert await code_of(tokenize(unknown)) is StatusCode.NOT_FOUND
        past = pb.DetokenizeRequest(token_ids=[10**6])
        assert await code_of(detokenize(past)) is StatusCode.INVALID_ARGUMENT


async def test_get_model_says_what_is_served() -> None:
    async with make_stack() as stack:
        model = await stack.client.GetModel(pb.GetModelRequest())
        assert (model.name, model.max_model_len) == (MODEL_NAME, MAX_MODEL_LEN)
        assert model.has_chat_template


async def test_tokens_come_with_their_texts_if_asked_for() -> None:
    async with make_stack() as stack:
        asked = pb.TokenizeRequest(text="Paris is nice", return_texts=True)
        tokens = await stack.client.Tokenize(asked)
        assert len(tokens.texts) == len(tokens.token_ids)
        assert "".join(tokens.texts) == BOS + "Paris is nice"
        assert not (await stack.client.Tokenize(pb.TokenizeRequest(text="a"))).texts
        asked.text = "a b " * MAX_MODEL_LEN
        assert await code_of(stack.client.Tokenize(asked)) is StatusCode.INVALID_ARGUMENT


async def test_the_load_is_the_routers_and_the_sum_of_the_workers() -> None:
    async with make_stack() as stack:
        workers = [
            stats_pb2.WorkerStats(
                num_requests_running=3,
                num_requests_swapped=1,
                num_gpu_blocks=100,
                num_free_gpu_blocks=60,
            )
        ] * 2
        stack.scheduler.stats = stats_pb2.GetStatsResponse(num_requests_waiting=5, workers=workers)
        call = stack.client.Generate(make_generate())
        await stack.scheduler.wait_until(lambda: len(stack.scheduler.added) == 1)
        load = await stack.client.GetLoad(pb.GetLoadRequest())
        call.cancel()
        assert load == pb.GetLoadResponse(
            num_live_requests=1,
            max_live_requests=4096,
            num_waiting_requests=5,
            num_running_requests=6,
            num_swapped_requests=2,
            num_workers=2,
            num_kv_blocks=200,
            num_used_kv_blocks=80,
        )


async def test_who_asks_for_the_load_at_once_costs_the_scheduler_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.load_client.MAX_AGE_S", 60)
    async with make_stack() as stack:
        asked = [stack.client.GetLoad(pb.GetLoadRequest()) for _ in range(50)]
        await asyncio.gather(*asked)
        assert stack.scheduler.num_stats_calls == 1


async def test_the_load_is_that_of_the_schedulers_that_answer() -> None:
    schedulers = [FakeScheduler(), FakeScheduler()]
    for scheduler in schedulers:
        await scheduler.start()
        scheduler.stats = stats_pb2.GetStatsResponse(num_requests_waiting=3)
    client = LoadClient([f"127.0.0.1:{scheduler.port}" for scheduler in schedulers])
    try:
        assert (await client.fetch()).num_waiting == 6
        await schedulers[0].stop()
        await asyncio.sleep(2 * MAX_AGE_S)
        assert (await client.fetch()).num_waiting == 3
        await schedulers[1].stop()
        await asyncio.sleep(2 * MAX_AGE_S)
        with pytest.raises(Unavailable):
            await client.fetch()
    finally:
        await client.close()


async def test_the_load_is_unavailable_while_nobody_serves() -> None:
    async with make_stack() as stack:
        stack.scheduler.has_worker = False
        await stack.wait_serving(False)
        ask = stack.client.GetLoad(pb.GetLoadRequest())
        assert await code_of(ask) is StatusCode.UNAVAILABLE
        stack.scheduler.has_worker = True
        await stack.wait_serving()


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["cancel", "finish", "deadline"]), min_size=1, max_size=12))
def test_requests_that_end_in_any_way_leave_nothing(ends: list[str]) -> None:
    async def run() -> None:
        async with make_stack() as stack:
            await asyncio.gather(*(end_one(stack, f"r{i}", how) for i, how in enumerate(ends)))
            await stack.check_nothing_is_left()
            finished_ids = {f"r{i}" for i, how in enumerate(ends) if how == "finish"}
            await stack.scheduler.wait_until(
                lambda: (
                    set(stack.scheduler.aborted)
                    == {a.handle for a in stack.scheduler.added if a.request_id not in finished_ids}
                )
            )

    async def end_one(stack: Stack, request_id: str, how: str) -> None:
        request = make_generate(request_id=request_id)
        call = stack.client.Generate(request, timeout=0.2 if how == "deadline" else None)
        names = stack.scheduler.added
        if how != "deadline":  # which may pass before the request is added
            await stack.scheduler.wait_until(
                lambda: any(add.request_id == request_id for add in names)
            )
        if how == "finish":
            handle = next(add.handle for add in names if add.request_id == request_id)
            stack.scheduler.send(step((handle, 0, ids_of("x")), **finished(handle)))
        elif how == "cancel":
            call.cancel()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for _ in call:
                pass

    asyncio.run(run())


async def test_a_deadline_beyond_what_the_wire_holds_is_no_deadline() -> None:
    assert timeout_ns(lambda: 99_999_999 * 3600.0) == MAX_TIMEOUT_NS
    assert scheduler_pb2.AddRequest(timeout_ns=MAX_TIMEOUT_NS).timeout_ns == MAX_TIMEOUT_NS


async def test_a_lost_stream_leaves_no_task_behind() -> None:
    """gRPC's poller, which all loops share, may complain of another test's closed loop."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with make_stack(resume_wait_s=0.0) as stack:
        for _ in range(3):
            stack.scheduler.added.clear()
            call = asyncio.create_task(stack.generate())
            await stack.scheduler.wait_until(lambda: bool(stack.scheduler.added))
            await stack.scheduler.stop()
            assert await code_of(call) is StatusCode.UNAVAILABLE
            await stack.wait_serving(False)
            await stack.scheduler.start()
            await stack.wait_serving()
        gc.collect()
        await asyncio.sleep(0.01)
    assert [context for context in complaints if {"task", "future"} & context.keys()] == []
