"""Calls that fail: their error, its code and its details."""

from typing import Any

import grpc
import pytest
from google.rpc import status_pb2


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def code_of(call: Any) -> grpc.StatusCode:
    return (await error_of(call)).code()


def details_of(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    packed = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    return status_pb2.Status.FromString(packed)
