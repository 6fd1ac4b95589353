"""Whose a request is, what it is worth, with whom it shares: from client to scheduler."""

import asyncio
from typing import Any

import grpc
import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.limits.tenants import TENANT_HEADER, Tenants
from tests.grpc_errors import code_of
from tests.router.apis.inference.test_chat import make_chat
from tests.router.fakes import finished, step
from tests.router.stack import Stack, make_generate, make_stack, saying


async def generate(stack: Stack, *metadata: tuple[str, str], **fields: Any) -> None:
    async for _ in stack.client.Generate(make_generate(**fields), metadata=metadata):
        pass


@pytest.mark.parametrize("method", ["Generate", "Chat"])
async def test_priority_and_cache_salt_reach_the_scheduler(method: str) -> None:
    async with make_stack(saying("!")) as stack:
        if method == "Chat":
            request: Any = make_chat(priority=-7, cache_salt="a")
        else:
            request = pb.GenerateRequest(text="Hi", priority=-7, cache_salt="a")
        async for _ in getattr(stack.client, method)(request):
            pass
        (added,) = stack.scheduler.added
        assert (added.priority, added.cache_salt, added.tenant) == (-7, "a", "")


@pytest.mark.parametrize("fields", [{"priority": 1001}, {"cache_salt": "é" * 65}])
async def test_values_out_of_range_are_refused_at_the_door(
    stack: Stack, fields: dict[str, Any]
) -> None:
    assert await code_of(generate(stack, **fields)) is grpc.StatusCode.INVALID_ARGUMENT
    assert not stack.scheduler.added


@pytest.mark.parametrize(("is_trusted", "tenant"), [(True, "blue"), (False, "")])
async def test_a_header_names_the_tenant_only_where_it_is_trusted(
    is_trusted: bool, tenant: str
) -> None:
    async with make_stack(saying("!"), trust_tenant_header=is_trusted) as stack:
        await generate(stack, (TENANT_HEADER, "blue"))
        (added,) = stack.scheduler.added
        # Where no tenant is named, the client's address pays.
        assert (added.tenant, added.payer) == (tenant, "" if tenant else "127.0.0.1")


async def test_tenants_do_not_see_each_others_request_ids() -> None:
    async with make_stack(trust_tenant_header=True) as stack:
        calls = [
            asyncio.create_task(generate(stack, (TENANT_HEADER, name), request_id="mine"))
            for name in ("blue", "red")
        ]
        await stack.added(2)
        again = generate(stack, (TENANT_HEADER, "red"), request_id="mine")
        assert await code_of(again) is grpc.StatusCode.ALREADY_EXISTS
        for added in stack.scheduler.added:
            stack.scheduler.send(step((added.handle, 0, [5]), **finished(added.handle)))
        await asyncio.gather(*calls)


@pytest.mark.parametrize(
    "metadata",
    [
        [(TENANT_HEADER, "blue"), (TENANT_HEADER, "red")],
        [(TENANT_HEADER, "x" * 129)],
        [(TENANT_HEADER, "a\nb")],
        [(TENANT_HEADER, b"blue")],
    ],
)
def test_a_header_that_names_no_one_tenant_is_refused(metadata: Any) -> None:
    with pytest.raises(InvalidArgument, match=TENANT_HEADER):
        Tenants(trust_header=True).tenant_of(metadata)
    assert Tenants(trust_header=False).tenant_of(metadata) == ""
