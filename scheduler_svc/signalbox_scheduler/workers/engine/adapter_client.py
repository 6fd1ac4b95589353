"""Has one worker load and unload LoRA adapters, beside its steps."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, Awaitable
from typing import Any

import grpc

from signalbox_contract.errors import FailedPrecondition, NotFound, Unavailable
from signalbox_contract.model import Adapter, decode_adapter, encode_adapter
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc as pb_grpc
from signalbox_rpc.interceptors.status import words_of

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 50.0
"""Seconds for a worker to read, check and pack an adapter. A worker that joins may have several to
load, and waits a minute for the answer to that."""
UNLOAD_TIMEOUT_S = 10.0

_CANNOT = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)


class WorkerAdapterClient:
    """Calls within one lease."""

    def __init__(self, stub: pb_grpc.WorkerServiceStub, *, address: str, epoch: int) -> None:
        self._stub, self._address, self._epoch = stub, address, epoch

    async def load(self, name: str, path: str, *, loaded_at_ns: int) -> Adapter:
        """Has an adapter loaded.

        Raises NotFound if the worker has no such folder, FailedPrecondition if it cannot load it,
        else Unavailable.
        """
        request = pb.LoadAdapterRequest(
            epoch=self._epoch, name=name, path=path, loaded_at_ns=loaded_at_ns
        )
        try:
            answer = await self._stub.LoadAdapter(request, timeout=LOAD_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            reason = self._reason("cannot load it", error)
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise NotFound(reason) from None
            if error.code() in _CANNOT:
                raise FailedPrecondition(reason) from None
            raise Unavailable(reason) from None
        return decode_adapter(answer.adapter)

    async def copy(self, adapter: Adapter, to: "WorkerAdapterClient") -> None:
        """Sends the files of an adapter that this worker has to another one, which loads it.

        Raises FailedPrecondition if that refuses them, else Unavailable.
        """
        reading = pb.ReadAdapterRequest(epoch=self._epoch, name=adapter.name, sha256=adapter.sha256)
        pieces = self._stub.ReadAdapter(reading, timeout=LOAD_TIMEOUT_S)
        try:
            await to._send(adapter, pieces)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(self._reason(f"cannot send {adapter}", error)) from None
        finally:
            pieces.cancel()

    async def _send(self, adapter: Adapter, pieces: AsyncIterable[pb.ReadAdapterResponse]) -> None:
        """Raises FailedPrecondition, Unavailable, or what reading raises."""
        header = pb.SendAdapterHeader(epoch=self._epoch, adapter=encode_adapter(adapter))
        call = self._stub.SendAdapter(timeout=LOAD_TIMEOUT_S)
        try:
            with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: `call` says why
                await _written(call, pb.SendAdapterRequest(header=header))
                async for piece in pieces:
                    await _written(call, pb.SendAdapterRequest(chunk=piece.chunk))
                await call.done_writing()
            await self._answered(call)
        finally:
            call.cancel()

    async def _answered(self, call: Awaitable[object]) -> None:
        try:
            await call
        except grpc.aio.AioRpcError as error:
            reason = self._reason("cannot load it", error)
            if error.code() in _CANNOT:
                raise FailedPrecondition(reason) from None
            raise Unavailable(reason) from None

    async def unload(self, adapter: Adapter) -> None:
        """Has an adapter freed. Raises Unavailable."""
        request = pb.UnloadAdapterRequest(
            epoch=self._epoch, name=adapter.name, sha256=adapter.sha256
        )
        try:
            await self._stub.UnloadAdapter(request, timeout=UNLOAD_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(self._reason(f"cannot unload {adapter}", error)) from None

    def _reason(self, what: str, error: grpc.aio.AioRpcError) -> str:
        """Returns why the worker fails. The log names the worker, and clients of routers read the
        rest."""
        reason = f"{what}: {words_of(error)}"
        logger.info("the worker at %s %s", self._address, reason)
        return f"a worker {reason}"


async def _written(call: Any, message: pb.SendAdapterRequest) -> None:
    """Raises InvalidStateError if the call has ended."""
    try:
        await call.write(message)
    except grpc.aio.AioRpcError:
        raise asyncio.InvalidStateError from None
