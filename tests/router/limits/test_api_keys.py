"""API keys: who gets in over gRPC and HTTP, as whom, and how much."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from signalbox_contract.errors import PermissionDenied, ResourceExhausted
from signalbox_protos.common.v1.common_pb2 import Adapter
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.http.key_middleware import KeyGate
from signalbox_router.limits.api_keys import ApiKey, KeyRing, parse_keys, read_keys
from signalbox_router.limits.key_file import KeyFileError
from signalbox_router.limits.key_quota import KeyLimits
from signalbox_router.limits.payers import Payer
from signalbox_router.limits.tenants import Caller
from tests.grpc_errors import code_of
from tests.router.apis.openai.clients import MODEL
from tests.router.stack import Stack, make_generate, make_stack, saying

KEY = "sb-secret"
BEARER = ("authorization", f"Bearer {KEY}")


def write_keys(path: Path, *entries: dict[str, Any]) -> str:
    path.write_text(json.dumps(entries))
    return str(path)


def entry(key: str = KEY, **fields: Any) -> dict[str, Any]:
    return {"name": "blue", "sha256": hashlib.sha256(key.encode()).hexdigest(), **fields}


async def generate(stack: Stack, *metadata: tuple[str, str], model: str = "") -> None:
    async for _ in stack.client.Generate(make_generate(model=model), metadata=metadata):
        pass


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", KEY),),
        (("authorization", f"Basic {KEY}"),),
        (BEARER, BEARER),
        (("authorization", "Bearer wrong"), BEARER),
    ],
)
async def test_a_call_without_one_known_key_is_refused_before_its_body_is_read(
    tmp_path: Path, metadata: tuple[tuple[str, str], ...]
) -> None:
    async with make_stack(api_keys=write_keys(tmp_path / "keys", entry())) as stack:
        assert await code_of(generate(stack, *metadata)) is grpc.StatusCode.UNAUTHENTICATED
        malformed = stack.channel.unary_unary("/signalbox.inference.v1.InferenceService/GetModel")
        refused = malformed(b"\xff", metadata=metadata)
        assert await code_of(refused) is grpc.StatusCode.UNAUTHENTICATED
        assert not stack.scheduler.added


async def test_calls_without_a_key_hold_no_stream_while_they_send_no_body(tmp_path: Path) -> None:
    async with make_stack(api_keys=write_keys(tmp_path / "keys", entry())) as stack:
        begin: Any = stack.channel.stream_stream(
            "/signalbox.inference.v1.InferenceService/Generate"
        )
        calls = [begin() for _ in range(1000)]
        codes = await asyncio.gather(*(one.code() for one in calls))
        assert set(codes) == {grpc.StatusCode.UNAUTHENTICATED}
        await stack.client.GetModel(pb.GetModelRequest(), metadata=[BEARER])


async def test_a_key_names_the_tenant_and_health_needs_none(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(tenant="team"))
    async with make_stack(saying("!"), api_keys=keys, trust_tenant_header=True) as stack:
        await generate(stack, BEARER, ("x-signalbox-tenant", "another"))
        (added,) = stack.scheduler.added
        assert (added.tenant, added.payer) == ("team", "")
        await health_pb2_grpc.HealthStub(stack.channel).Check(health_pb2.HealthCheckRequest())


async def test_reflection_needs_a_key(tmp_path: Path) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with make_stack(api_keys=write_keys(tmp_path / "keys", entry())) as stack:
        stub = reflection_pb2_grpc.ServerReflectionStub(stack.channel)
        refused = stub.ServerReflectionInfo(iter([request]))
        assert await code_of(refused.read()) is grpc.StatusCode.UNAUTHENTICATED
        shown = await stub.ServerReflectionInfo(iter([request]), metadata=[BEARER]).read()
        assert shown.list_services_response.service


async def test_a_key_is_shown_the_adapters_that_it_may_use(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=[MODEL, "sql"]))
    adapters = [Adapter(name=name, sha256=sha * 32) for name, sha in (("sql", "a1"), ("hr", "b2"))]
    async with make_stack(api_keys=keys, adapters=adapters) as stack:
        listed = await stack.client.ListModels(pb.ListModelsRequest(), metadata=[BEARER])
        one = await stack.client.GetModel(pb.GetModelRequest(), metadata=[BEARER])
        assert [*listed.models[0].adapters] == [*one.adapters] == ["sql"]


async def test_a_key_for_other_models_is_denied(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=["another"]))
    async with make_stack(api_keys=keys) as stack:
        assert await code_of(generate(stack, BEARER)) is grpc.StatusCode.PERMISSION_DENIED
        assert not stack.scheduler.added


async def test_a_key_for_an_alias_is_one_for_the_model(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(models=["another"]))
    async with make_stack(saying("!"), api_keys=keys, served_model_name="another") as stack:
        await generate(stack, BEARER)
        assert len(stack.scheduler.added) == 1


async def test_keys_that_the_router_is_started_with_are_asked_for(tmp_path: Path) -> None:
    async with make_stack(saying("!"), api_key="one,two") as stack:
        assert await code_of(generate(stack)) is grpc.StatusCode.UNAUTHENTICATED
        await generate(stack, ("authorization", "Bearer one"))
        await generate(stack, ("authorization", "Bearer two"))
        assert [added.tenant for added in stack.scheduler.added] == ["api-key-1", "api-key-2"]
    digests = tuple(hashlib.sha256(key.encode()).digest() for key in ("one", "two"))
    both = KeyRing(write_keys(tmp_path / "keys", entry()), digests=digests)
    assert both.find([BEARER]).name == "blue"
    assert both.find([("authorization", "Bearer two")]).name == "api-key-2"


def test_a_key_in_place_of_its_file_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="api_key takes a key itself") as caught:
        KeyRing("sk-do-not-show")
    assert "sk-do-not-show" not in str(caught.value)
    with pytest.raises(KeyFileError, match=r"keys\.yaml"):
        KeyRing(str(tmp_path / "keys.yaml"))


async def test_tokens_of_prompt_and_answer_count(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(tokens_per_minute=1))
    async with make_stack(saying("!"), api_keys=keys) as stack:
        await generate(stack, BEARER)
        assert await code_of(generate(stack, BEARER)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(stack.scheduler.added) == 1
        await stack.client.GetModel(pb.GetModelRequest(), metadata=[BEARER])


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"name": "a", "sha256": "12"}], "64 hexadecimal"),
        ([{"name": "a", "sha256": 12}], "64 hexadecimal"),
        ([entry(role="x")], "unknown field"),
        ([entry(tokens_per_minute=0)], "at least 1"),
        ([entry(), entry("b")], "same name"),
        ([entry(), entry(name="red")], "same sha256"),
        ([entry(models="m")], "must be a list"),
        (["key"], "mapping"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, entries: list[Any], message: str
) -> None:
    with pytest.raises(KeyFileError, match=message) as caught:
        read_keys(Path(write_keys(tmp_path / "keys", *entries)))
    assert "\n" not in str(caught.value)


def make_key(**fields: Any) -> ApiKey:
    return ApiKey(name="blue", sha256=b"", tenant="blue", **fields)


def test_a_place_is_given_back_whatever_ends_a_request() -> None:
    limits, key = KeyLimits(), make_key(max_concurrent_requests=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="boom"), limits.request(key, "m"):
            with pytest.raises(ResourceExhausted) as refused, limits.request(key, "m"):
                pass
            assert refused.value.retry_after_s
            raise RuntimeError("boom")
    with limits.request(key, "m"):
        pass


def test_debt_is_paid_off_at_the_keys_rate() -> None:
    now = 0.0
    limits, key = KeyLimits(clock=lambda: now), make_key(tokens_per_minute=60)
    with limits.request(key, "m") as account:
        assert account is not None
        account.spend(89)
    with pytest.raises(ResourceExhausted) as refused, limits.request(key, "m"):
        pass
    assert refused.value.retry_after_s == 30.0
    now = 30.0
    with limits.request(key, "m") as account:
        assert account is not None
        assert account.tokens == 1.0
    now = 3600.0
    with limits.request(key, "m") as account:
        assert account is not None
        assert account.tokens == 60.0  # no more than a minute's


def test_a_key_without_limits_costs_no_counting() -> None:
    limits = KeyLimits()
    with limits.request(make_key(), "m") as account:
        assert account is None
    with pytest.raises(PermissionDenied), limits.request(make_key(models=frozenset()), "m"):
        pass


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/models", [], 401),
        ("/v1/models", [(b"authorization", b"Bearer wrong")], 401),
        ("/v1/models", [(b"authorization", b"Bearer sb-secret")] * 2, 401),
        ("/v1/models", [(b"authorization", b"Bearer sb-secret")], 200),
        ("/v1/models", [(b"x-api-key", b"sb-secret")], 200),
        ("/v1/models", [(b"x-api-key", b"wrong")], 401),
        ("/v1/models", [(b"x-api-key", b"sb-secret")] * 2, 401),
        ("/v1/models", [(b"x-api-key", b"sb-secret"), (b"authorization", b"Bearer wrong")], 401),
        ("/docs/other", [], 401),
        ("/docs/assetsother", [], 401),
        ("/health/", [], 401),
        ("/docs", [], 200),
        ("/docs/assets/swagger-ui.css", [], 200),
        ("/openapi.json", [], 200),
        ("/health", [], 200),
    ],
)
async def test_http_asks_for_the_same_keys_before_it_reads(
    tmp_path: Path, path: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    gate = KeyGate(app, KeyRing(write_keys(tmp_path / "keys", entry())))
    await gate({"type": "http", "path": path, "headers": headers}, receive, send)
    assert sent[0]["status"] == status


async def detokenize(stack: Stack) -> None:
    request = pb.DetokenizeRequest(token_ids=[5, 6, 7])
    await stack.client.Detokenize(request, metadata=[BEARER])


async def tokenize(stack: Stack) -> None:
    await stack.client.Tokenize(pb.TokenizeRequest(text="Paris"), metadata=[BEARER])


async def get_tokenizer(stack: Stack) -> None:
    stub = vllm_engine_pb2_grpc.VllmEngineStub(stack.channel)
    request = common_pb2.GetTokenizerRequest()
    async for _ in stub.GetTokenizer(request, metadata=[BEARER]):
        pass


async def post(stack: Stack, path: str, body: dict[str, Any]) -> None:
    """Raises the RPC error that stands for the answer's status, as the other calls do."""
    assert stack.router.http is not None
    headers = dict([BEARER])
    async with httpx2.AsyncClient(base_url=f"http://{stack.router.http.address}") as client:
        answer = await client.post(path, json=body, headers=headers)
    code = {
        200: grpc.StatusCode.OK,
        403: grpc.StatusCode.PERMISSION_DENIED,
        429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    }[answer.status_code]
    if code is not grpc.StatusCode.OK:
        message = answer.json()["error"]["message"]
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), message)


CALLS: dict[str, Callable[[Stack], Coroutine[Any, Any, None]]] = {
    "Tokenize": tokenize,
    "Detokenize": detokenize,
    "GetTokenizer": get_tokenizer,
    "/tokenize": lambda stack: post(stack, "/tokenize", {"prompt": "Paris"}),
    "/tokenize of a conversation": lambda stack: post(
        stack, "/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}
    ),
    "/v1/messages/count_tokens": lambda stack: post(
        stack, "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}
    ),
    "/detokenize": lambda stack: post(stack, "/detokenize", {"tokens": [5, 6, 7]}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_that_generates_nothing_obeys_a_keys_limits(
    call: Callable[[Stack], Coroutine[Any, Any, None]], tmp_path: Path
) -> None:
    limits: dict[str, Any] = {"max_concurrent_requests": 1, "tokens_per_minute": 60_000}
    path = tmp_path / "keys"
    async with make_stack(http_port=0, api_keys=write_keys(path, entry(**limits))) as stack:
        await call(stack)
        held = stack.router.generator.place(caller_of(path), "")
        async with held as place:
            assert await code_of(call(stack)) is grpc.StatusCode.RESOURCE_EXHAUSTED
            place.spend(600_000)  # debt of nine minutes
        assert await code_of(call(stack)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        write_keys(path, entry(**limits | {"tokens_per_minute": 10**15}))
        await call(stack)
        write_keys(path, entry(models=["another"]))
        assert await code_of(call(stack)) is grpc.StatusCode.PERMISSION_DENIED
        assert not stack.router.live.num_live


def caller_of(path: Path) -> Caller:
    (key,) = read_keys(path)
    return Caller(key.tenant, key, Payer(key.tenant))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "GetTokenizer"])
async def test_tokens_that_are_only_looked_up_count_too(name: str, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys", entry(tokens_per_minute=1))
    async with make_stack(http_port=0, api_keys=keys) as stack:
        await CALLS[name](stack)
        refused = CALLS[name](stack)
        assert await code_of(refused) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_without_keys_such_calls_are_among_the_requests_that_the_router_takes() -> None:
    async with make_stack(http_port=0, max_live_requests=1) as stack:
        with stack.router.live.reserve("a"):
            for call in CALLS.values():
                assert await code_of(call(stack)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in CALLS.values():
            await call(stack)


@pytest.mark.parametrize("field", ["tenant", "models", "max_concurrent_requests"])
def test_aliases_that_stand_for_millions_of_values_cost_one_short_line(field: str) -> None:
    levels = ["&x0 [a, a, a, a, a, a, a, a, a]"]
    levels += [f"&x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 7)]
    digest = hashlib.sha256(b"key").hexdigest()
    text = f"- {{name: k, sha256: '{digest}', {field}: [{', '.join(levels)}]}}"
    with pytest.raises(KeyFileError) as raised:
        parse_keys(text, "api_keys")
    assert len(str(raised.value)) < 200


def test_merges_that_multiply_are_refused_before_they_are_made() -> None:
    lines = ["- &x0 {name: k, sha256: a}"]
    lines += [f"- &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 9)}]}}" for n in range(1, 60)]
    with pytest.raises(KeyFileError, match=r"^cannot read api_keys: merges .* too many fields"):
        parse_keys("\n".join(lines), "api_keys")


def test_keys_may_merge_what_they_have_in_common() -> None:
    digests = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(500)]
    lines = [f"- &all {{name: k, sha256: '{digests[0]}', tenant: t, tokens_per_minute: 5}}"]
    lines += [
        f"- {{<<: *all, name: k{number}, sha256: '{digest}'}}"
        for number, digest in enumerate(digests[1:])
    ]
    keys = parse_keys("\n".join(lines), "api_keys")
    assert {(key.tenant, key.tokens_per_minute) for key in keys} == {("t", 5)}
    assert len(keys) == len(digests)


@pytest.mark.parametrize(
    "text", ["- {name: %s, x: 1}", "- {name: k, ? %s : 1}", "- !%s a", "- *%s", "- {? %s : 1}"]
)
def test_what_a_key_file_calls_its_keys_is_not_repeated_at_length(text: str) -> None:
    with pytest.raises(KeyFileError) as raised:
        parse_keys(text % ("x" * 100_000), "api_keys")
    assert len(str(raised.value)) < 1100
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["- {name: k, ? %s : 1}", "- !%s a", "- *%s", "- !%s!a b", "- %s"])
def test_what_stands_in_the_place_of_a_field_or_a_tag_may_be_a_key(text: str) -> None:
    with pytest.raises(KeyFileError) as raised:
        parse_keys(text % "sb-planted", "api_keys")
    assert "planted" not in str(raised.value)
