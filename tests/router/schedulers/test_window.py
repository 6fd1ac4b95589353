"""The effective window at the router: told to clients, followed, and kept for a request."""

from collections.abc import Iterable

import openai
import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from tests.router.apis.openai.clients import Http, make_http
from tests.router.fakes import finished, request_finished, step
from tests.router.stack import Stack, eventually, make_generate

INVALID_ARGUMENT = 3


def too_long(add: scheduler_pb2.Request) -> Iterable[scheduler_pb2.RequestUpdates]:
    end = request_finished(add.handle, code=INVALID_ARGUMENT, message="no", exceeded_window=40)
    yield step(requests=[end])


@pytest.mark.parametrize("is_chat", [False, True])
async def test_a_prompt_past_the_effective_window_is_a_400_that_clients_know(is_chat: bool) -> None:
    async with make_http(too_long) as http:
        with pytest.raises(openai.BadRequestError) as refused:
            await (http.chat() if is_chat else http.complete())
        assert refused.value.code == "context_length_exceeded"
        assert refused.value.param == ("messages" if is_chat else "prompt")
        assert "maximum context length is 40 tokens" in refused.value.message
        await http.stack.check_nothing_is_left()


async def test_models_tell_the_effective_window_and_follow_it(http: Http) -> None:
    model = http.stack.router.schedulers
    assert (await http.raw.get("/v1/models")).json()["data"][0]["max_model_len"] == 2048
    for window in (1000, 500, 1500):
        http.stack.scheduler.effective_max_model_len = window
        http.stack.scheduler.say_model_changed()
        await eventually(lambda window=window: model.models.of().window == window)
        told = (await http.raw.get("/v1/models")).json()["data"][0]["max_model_len"]
        grpc_told = await http.stack.client.GetModel(pb.GetModelRequest())
        assert told == grpc_told.effective_max_model_len == window
        assert grpc_told.max_model_len == 2048


async def test_only_a_limit_that_nobody_set_may_be_cut_and_a_cut_one_is_kept(stack: Stack) -> None:
    call = stack.client.Generate(make_generate())
    explicit = stack.client.Generate(make_generate(sampling_params=pb.SamplingParams(max_tokens=9)))
    await stack.added(2)
    first, second = sorted(stack.scheduler.added, key=lambda add: -add.max_tokens)
    assert (first.max_tokens_is_default, second.max_tokens_is_default) == (True, False)
    cut = scheduler_pb2.AdmittedRequest(handle=first.handle, max_tokens=7)
    stack.scheduler.send(scheduler_pb2.RequestUpdates(admitted=[cut]))
    stack.scheduler.send(step((first.handle, 0, [5])))
    await call.read()
    stack.scheduler.end_stream()
    await stack.added(4)
    again = {add.handle: add for add in stack.scheduler.added[2:]}
    kept = again[first.handle]
    assert (kept.attempt, kept.max_tokens, kept.max_tokens_is_default) == (1, 7, False)
    for handle in again:
        stack.scheduler.send(step((handle, 0, [5]), **finished(handle)))
    while await call.read():
        pass
    async for _ in explicit:
        pass
