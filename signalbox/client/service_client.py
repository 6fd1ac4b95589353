"""Calls one service for a command, such as `top` or `profile`; a failed call is one line."""

from collections.abc import AsyncIterator
from typing import Any, Self

import grpc

from signalbox.client.connection import PLAIN, Connection, dial
from signalbox.client.tls_probe import tls_hint
from signalbox_rpc.interceptors.status import is_said

TIMEOUT_S = 10.0
NO_METHOD = "Method not found!"
"""Details of UNIMPLEMENTED from a server that lacks the method."""
_UNDER_SERVE = "; under serve its port is the router's + 1, and `signalbox ps` shows it"


class Unreachable(RuntimeError):
    """The service does not answer in time; the message says so in one line."""


class CallRefused(RuntimeError):
    """The service refuses the call; the message gives the reason in one line."""


class NotKnown(CallRefused):
    """The service does not know, or no longer knows, what the call is about."""


class ServiceClient:
    """A connection to one service. Failed calls raise Unreachable or CallRefused."""

    def __init__(self, name: str, stub: Any, address: str, how: Connection = PLAIN) -> None:
        """Args: stub: class of the service's stub; generated without types."""
        self.address = address
        self._name = name
        self._where = _UNDER_SERVE if name == "scheduler" else ""
        self._channel = dial(address, how)
        self._uses_tls = how.tls.ca is not None
        self.stub = stub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._channel.close()

    async def answer(self, call: Any) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error

    async def answers(self, call: Any) -> AsyncIterator[Any]:
        try:
            async for part in call:
                yield part
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error

    def _failure(self, error: grpc.aio.AioRpcError) -> RuntimeError:
        code, details = error.code(), error.details() or error.code().name
        is_silent = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        if is_silent and not is_said(error):
            hint = tls_hint(self.address, uses_tls=self._uses_tls)
            remedy = hint or f"; check that it runs, and --{self._name}{self._where}"
            return Unreachable(f"no {self._name} answers at {self.address}{remedy}")
        if code is grpc.StatusCode.UNIMPLEMENTED and details == NO_METHOD:
            return CallRefused(f"{self.address} is no {self._name} of this version{self._where}")
        return NotKnown(details) if code is grpc.StatusCode.NOT_FOUND else CallRefused(details)
