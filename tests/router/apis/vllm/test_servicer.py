"""The router as gateways of vLLM's engine protocol use it, through smg-grpc-proto's own stub."""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from signalbox_protos.common.v1.common_pb2 import TokenLogprobs
from signalbox_protos.scheduler.v1 import scheduler_pb2, stats_pb2
from signalbox_router.apis.vllm.servicer import SERVICE_NAME
from tests.grpc_errors import code_of
from tests.router.fakes import (
    BOS,
    EOS,
    MAX_MODEL_LEN,
    MODEL_NAME,
    bytewise_ids,
    finished,
    ids_of,
    request_finished,
    step,
    token,
)
from tests.router.stack import Stack, make_stack, saying
from tests.waiting import eventually

PROMPT = [token(BOS), *ids_of("Paris")]
Responses = list[pb.GenerateResponse]


def stub_of(stack: Stack) -> Any:
    return vllm_engine_pb2_grpc.VllmEngineStub(stack.channel)


def make_request(stream: bool = True, **fields: Any) -> pb.GenerateRequest:
    fields.setdefault("tokenized", pb.TokenizedInput(input_ids=PROMPT))
    return pb.GenerateRequest(stream=stream, **fields)


async def generate(stack: Stack, **fields: Any) -> Responses:
    return [message async for message in stub_of(stack).Generate(make_request(**fields))]


def completes_of(responses: Responses) -> list[pb.GenerateComplete]:
    return [one.complete for one in responses if one.HasField("complete")]


def chunks_of(responses: Responses) -> list[pb.GenerateStreamChunk]:
    return [one.chunk for one in responses if one.HasField("chunk")]


async def test_a_stream_is_chunks_of_new_tokens_and_then_all_of_them() -> None:
    async with make_stack(saying(" Paris", " is", " nice")) as stack:
        responses = await generate(stack, request_id="mine")
        chunks, (complete,) = chunks_of(responses), completes_of(responses)
        assert responses[-1].complete == complete
        expected = ids_of(" Paris") + ids_of(" is") + ids_of(" nice")
        assert [one for chunk in chunks for one in chunk.token_ids] == expected
        assert sum(chunk.completion_tokens for chunk in chunks) == len(expected)
        assert list(complete.output_ids) == expected
        assert complete.finish_reason == "length"
        assert (complete.prompt_tokens, complete.cached_tokens) == (len(PROMPT), 3)
        (add,) = stack.scheduler.added
        assert (add.request_id, list(add.prompt_token_ids)) == ("mine", PROMPT)
        assert (add.tenant, add.payer) == ("", "127.0.0.1")


async def test_without_streaming_there_is_one_message_for_each_sequence() -> None:
    def script(add: scheduler_pb2.Request) -> Iterable[scheduler_pb2.RequestUpdates]:
        yield step((add.handle, 0, [5]), (add.handle, 1, [6]))
        ends = [
            scheduler_pb2.FinishedSequence(handle=add.handle, index=0, reason=1),
            scheduler_pb2.FinishedSequence(
                handle=add.handle,
                index=1,
                reason=scheduler_pb2.FINISH_REASON_STOP_TOKEN,
                stop_token_id=9,
            ),
        ]
        runs = ((add.handle, 0, [token(EOS)]), (add.handle, 1, [9]))
        yield step(*runs, sequences=ends, requests=[request_finished(add.handle)])

    async with make_stack(script) as stack:
        params = pb.SamplingParams(n=2, stop_token_ids=[9])
        first, second = completes_of(
            await generate(stack, stream=False, sampling_params=params, request_id="two")
        )
        assert (first.index, list(first.output_ids)) == (0, [5, token(EOS)])
        assert (first.finish_reason, first.WhichOneof("matched_stop")) == ("stop", None)
        assert (second.index, list(second.output_ids)) == (1, [6, 9])
        assert (second.finish_reason, second.matched_token_id) == ("stop", 9)
        assert first.completion_tokens == second.completion_tokens == 2


async def test_a_stop_string_ends_the_sequence_and_is_named() -> None:
    async with make_stack(saying("one, two")) as stack:
        params = pb.SamplingParams(stop=[", t"], skip_special_tokens=True)
        (complete,) = completes_of(await generate(stack, sampling_params=params))
        assert (complete.finish_reason, complete.matched_stop_str) == ("stop", ", t")


async def test_sampling_fields_mean_what_they_mean_to_vllm() -> None:
    async with make_stack(saying("x")) as stack:
        await generate(stack)
        await generate(
            stack,
            sampling_params=pb.SamplingParams(
                temperature=0,
                top_p=0.5,
                repetition_penalty=1.5,
                seed=-1,
                max_tokens=7,
                ignore_eos=True,
                logit_bias={5: 1.5, 4: -1},
                regex="[ab]+",
                truncate_prompt_tokens=-1,
            ),
        )
        plain, full = stack.scheduler.added
        assert plain.sampling_params.temperature == plain.sampling_params.top_p == 1
        assert plain.sampling_params.repetition_penalty == plain.num_sequences == 1
        assert plain.max_tokens == MAX_MODEL_LEN - len(PROMPT)
        params = full.sampling_params
        assert (params.temperature, params.top_p, params.repetition_penalty) == (0, 0.5, 1.5)
        assert (params.seed, full.max_tokens, list(params.stop_token_ids)) == (2**64 - 1, 7, [])
        assert params.structured_output.regex == "[ab]+"
        assert list(full.prompt_token_ids) == PROMPT


async def test_log_probabilities_come_with_tokens_and_prompt() -> None:
    def entry(row: int, value: float) -> TokenLogprobs:
        return TokenLogprobs(
            row=row, logprob=value, rank=1, top_token_ids=[5, 6], top_logprobs=[value, -4]
        )

    def script(add: scheduler_pb2.Request) -> Iterable[scheduler_pb2.RequestUpdates]:
        outputs = step((add.handle, 0, [5]), logprobs=[entry(0, -0.5)], **finished(add.handle))
        run = outputs.prompt_logprobs.add(handle=add.handle, first_position=1)
        run.logprobs.extend(entry(0, -2) for _ in PROMPT[1:])
        yield outputs

    async with make_stack(script) as stack:
        params = pb.SamplingParams(logprobs=2, prompt_logprobs=2)
        responses = await generate(stack, sampling_params=params)
        (chunk,), (last,) = chunks_of(responses), completes_of(responses)
        assert not last.HasField("output_logprobs")
        (complete,) = completes_of(await generate(stack, stream=False, sampling_params=params))
        assert chunk.output_logprobs == complete.output_logprobs
        assert chunk.input_logprobs == complete.input_logprobs == last.input_logprobs
        assert list(chunk.output_logprobs.token_logprobs) == [-0.5]
        assert list(chunk.output_logprobs.top_logprobs[0].token_ids) == [5, 6]
        first, *others = chunk.input_logprobs.token_logprobs
        assert not first.HasField("value")
        assert [one.value for one in others] == [-2] * (len(PROMPT) - 1)
        assert len(chunk.input_logprobs.top_logprobs) == len(PROMPT)


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"tokenized": pb.TokenizedInput()}, "INVALID_ARGUMENT", "tokenized.input_ids"),
        ({"tokenized": pb.TokenizedInput(input_ids=[9999])}, "INVALID_ARGUMENT", "input_ids"),
        ({"tokenized": None}, "INVALID_ARGUMENT", "input"),
        ({"data_parallel_rank": 1}, "INVALID_ARGUMENT", "data_parallel_rank"),
        ({"kv_transfer_params_json": '{"a": 1}'}, "UNIMPLEMENTED", "kv_transfer_params_json"),
        ({"mm_inputs": pb.MultimodalInputs()}, "UNIMPLEMENTED", "mm_inputs"),
        ({"sampling_params": {"n": 2**32 - 1}}, "INVALID_ARGUMENT", "sampling_params.n"),
        ({"sampling_params": {"logprobs": -1}}, "INVALID_ARGUMENT", "logprobs"),
        ({"sampling_params": {"logit_bias": {-1: 1}}}, "INVALID_ARGUMENT", "ids in [0, "),
        ({"sampling_params": {"stop_token_ids": [2**32 - 1]}}, "INVALID_ARGUMENT", "ids in [0, "),
        ({"sampling_params": {"truncate_prompt_tokens": 10**6}}, "INVALID_ARGUMENT", "truncate"),
        ({"sampling_params": {"structural_tag": "{}"}}, "UNIMPLEMENTED", "structural_tag"),
        ({"sampling_params": {"choice": {}}}, "INVALID_ARGUMENT", "structured_output.choice"),
        ({"sampling_params": {"truncate_prompt_tokens": -2}}, "INVALID_ARGUMENT", "truncate"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(
    stack: Stack, fields: dict[str, Any], code: str, named: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(stack, **fields)
    assert caught.value.code().name == code
    assert named in (caught.value.details() or "")
    assert not stack.scheduler.added


async def test_parameters_of_no_kv_transfer_are_taken() -> None:
    async with make_stack(saying("ok")) as stack:
        for fields in ({"kv_transfer_params": {}}, {"kv_transfer_params_json": "{}"}):
            (complete,) = completes_of(await generate(stack, **fields))
            assert complete.finish_reason == "length"


async def test_abort_ends_the_stream_with_what_there_is() -> None:
    async with make_stack(lambda add: [step((add.handle, 0, bytewise_ids("ab")))]) as stack:
        stub = stub_of(stack)
        params = pb.SamplingParams(n=2)
        call = stub.Generate(make_request(request_id="mine", sampling_params=params))
        chunk = (await anext(aiter(call))).chunk
        await stub.Abort(pb.AbortRequest(request_ids=["another", "mine"]))
        complete, other = completes_of([message async for message in call])
        assert complete.finish_reason == other.finish_reason == "abort"
        assert (complete.index, other.index, list(other.output_ids)) == (0, 1, [])
        assert list(complete.output_ids) == list(chunk.token_ids) == bytewise_ids("ab")
        await stack.scheduler.wait_until(lambda: len(stack.scheduler.aborted) == 1)


async def test_abort_reaches_a_request_that_has_no_token_yet(stack: Stack) -> None:
    stub = stub_of(stack)
    reading = asyncio.create_task(generate(stack, request_id="mine"))
    await stack.added()
    await stub.Abort(pb.AbortRequest(request_ids=["mine"]))
    (complete,) = completes_of(await reading)
    assert (complete.finish_reason, list(complete.output_ids)) == ("abort", [])


async def test_abort_reaches_only_requests_of_the_callers_tenant() -> None:
    async with make_stack(trust_tenant_header=True) as stack:
        stub = stub_of(stack)
        call = stub.Generate(
            make_request(request_id="mine"), metadata=(("x-signalbox-tenant", "blue"),)
        )
        await stack.added()
        await stub.Abort(
            pb.AbortRequest(request_ids=["mine"]), metadata=(("x-signalbox-tenant", "red"),)
        )
        assert stack.router.live.num_live == 1
        call.cancel()
        await stack.check_nothing_is_left()


async def test_the_model_and_the_server_are_told() -> None:
    async with make_stack(lambda add: [step((add.handle, 0, [5]))]) as stack:
        stub = stub_of(stack)
        info = await stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.served_model_name, info.max_context_length) == (MODEL_NAME, MAX_MODEL_LEN)
        assert list(info.eos_token_ids) == [token(EOS)]
        assert info.bos_token_id == token(BOS)
        call = stub.Generate(make_request())
        await anext(aiter(call))
        server = await stub.GetServerInfo(pb.GetServerInfoRequest())
        assert (server.server_type, server.active_requests) == ("vllm-grpc", 1)
        call.cancel()
        await stack.check_nothing_is_left()


def is_path(source: str) -> bool:
    """As a gateway asks before it uses a source."""
    return Path(source).exists()


async def test_the_tokenizer_path_is_neither_a_path_nor_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / MODEL_NAME).mkdir()  # a gateway started beside a folder of the model's name
    monkeypatch.chdir(tmp_path)
    async with make_stack() as stack:
        info = await stub_of(stack).GetModelInfo(pb.GetModelInfoRequest())
        assert is_path(info.model_path) and not is_path(info.tokenizer_path)
        with pytest.raises(HFValidationError):
            validate_repo_id(info.tokenizer_path)
        service, method = info.tokenizer_path.rsplit("/", 2)[1:]
        assert service == SERVICE_NAME and hasattr(stub_of(stack), method)
        await stack.check_nothing_is_left()


async def test_the_load_is_that_of_all_workers() -> None:
    workers = [
        stats_pb2.WorkerStats(
            num_requests_running=4,
            num_requests_swapped=1,
            num_gpu_blocks=100,
            num_free_gpu_blocks=free,
        )
        for free in (90, 60)
    ]
    async with make_stack(version="1.2.3") as stack:
        stack.scheduler.stats = stats_pb2.GetStatsResponse(workers=workers, num_requests_waiting=3)
        loads = await stub_of(stack).GetLoads(pb.GetLoadsRequest())
        assert (loads.version, loads.dp_rank_count) == ("1.2.3", 1)
        (load,) = loads.loads
        assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (8, 5, 13)
        assert load.token_usage == 0.25


async def test_health_follows_the_worker(stack: Stack) -> None:
    stub = stub_of(stack)
    assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
    standard = await stack.health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
    assert standard.status == health_pb2.HealthCheckResponse.SERVING
    stack.scheduler.has_worker = False
    await stack.wait_serving(False)
    assert not (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
    assert await code_of(stub.GetModelInfo(pb.GetModelInfoRequest())) is (
        grpc.StatusCode.UNAVAILABLE
    )


async def test_the_tokenizer_comes_as_an_archive_with_its_digest(stack: Stack) -> None:
    chunks = [
        chunk async for chunk in stub_of(stack).GetTokenizer(common_pb2.GetTokenizerRequest())
    ]
    data = b"".join(chunk.data for chunk in chunks)
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == stack.scheduler.files


async def test_a_client_that_leaves_aborts_its_request() -> None:
    async with make_stack(lambda add: [step((add.handle, 0, [5]))]) as stack:
        call = stub_of(stack).Generate(make_request())
        await anext(aiter(call))
        call.cancel()
        await eventually(lambda: bool(stack.scheduler.aborted))
        await stack.check_nothing_is_left()
