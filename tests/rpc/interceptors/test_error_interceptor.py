"""Exceptions reach the client as statuses with details, and nothing else does."""

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2

from signalbox_contract import errors
from signalbox_rpc.interceptors.status import retry_after_s
from tests.grpc_errors import code_of, details_of, error_of
from tests.rpc.echo import KINDS, Echo, call, serving, text
from tests.waiting import EVENT_S


def raising(error: Exception) -> Echo:
    def action(_text: str) -> str:
        raise error

    return Echo(action)


async def failure(echo: Echo, kind: str, *requests: bytes) -> grpc.aio.AioRpcError:
    async with serving(echo) as (_, channel):
        return await error_of(call(channel, kind, *requests))


@pytest.mark.parametrize("part", ["x", "é", "\N{STEAM LOCOMOTIVE}"])
async def test_a_long_message_is_cut_and_not_lost(part: str) -> None:
    error = await failure(raising(errors.NotFound(part * 10_000)), KINDS[0], text("a"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == details_of(error).message
    assert error.details().startswith(part * 200)
    assert error.details().endswith("...")


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_call_answers(kind: str) -> None:
    async with serving(Echo(str.upper)) as (_, channel):
        assert await call(channel, kind, text("a")) == ["A"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_invalid_argument_names_field_value_and_range(kind: str) -> None:
    error = await failure(
        raising(errors.InvalidArgument("sampling_params.top_p", 1.5, "(0, 1]")), kind, text("a")
    )
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    request = error_details_pb2.BadRequest()
    assert details_of(error).details[0].Unpack(request)
    assert request.field_violations[0].field == "sampling_params.top_p"
    for told in ("sampling_params.top_p", "1.5", "(0, 1]"):
        assert told in error.details()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unexpected_exception_is_internal_and_leaks_no_text(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = await failure(raising(KeyError("secret")), kind, text("a"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in error.details()
    assert "secret" in caplog.text


@pytest.mark.parametrize("malformed", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe"])
@pytest.mark.parametrize("kind", KINDS)
async def test_malformed_bytes_are_an_invalid_argument(kind: str, malformed: bytes) -> None:
    error = await failure(Echo(), kind, malformed)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Error" not in error.details()


async def test_unknown_fields_and_an_empty_message_are_accepted() -> None:
    async with serving(Echo()) as (_, channel):
        assert await call(channel, "unary", b"") == [""]
        assert await call(channel, "unary", text("a") + b"\x78\x01") == ["a"]


@pytest.mark.parametrize("error_type", [errors.ResourceExhausted, errors.Unavailable])
async def test_a_passing_failure_says_when_to_retry(error_type: type[errors.Unavailable]) -> None:
    error = await failure(raising(error_type("full", retry_after_s=1.5)), "unary", text("a"))
    assert error.code().value[0] == error_type.code
    assert retry_after_s(error) == 1.5


async def test_a_failure_for_good_carries_no_retry_info() -> None:
    error = await failure(raising(errors.ResourceExhausted("never fits")), "unary", text("a"))
    assert retry_after_s(error) is None


@pytest.mark.parametrize("kind", ["unary", "server_stream"])
async def test_a_cancelled_call_runs_the_handlers_finally(kind: str) -> None:
    echo = Echo(lambda _text: asyncio.Event().wait())
    async with serving(echo) as (_, channel):
        task = asyncio.ensure_future(call(channel, kind, text("a")))
        await echo.a_start.wait()
        task.cancel()
        async with asyncio.timeout(EVENT_S):
            await echo.an_end.wait()
    assert echo.ended == [kind]


async def test_an_interceptors_refusal_reaches_a_call_of_any_kind() -> None:
    class Refuse(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation, details):  # type: ignore[no-untyped-def]
            raise errors.Unauthenticated("no key")

    async with serving(Echo(), interceptors=[Refuse()]) as (_, channel):
        for kind in KINDS:
            refused = call(channel, kind, text("a"))
            assert await code_of(refused) is grpc.StatusCode.UNAUTHENTICATED
