"""Checks API keys of gRPC calls before a byte of a request's body is read.

Health is open, for probes; everything else, including reflection, needs a key.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from signalbox_router.limits.api_keys import KeyRing
from signalbox_rpc.interceptors.call_handlers import Handler
from signalbox_rpc.transport.health import SERVICE_NAME as HEALTH


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a known key."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        if not handler_call_details.method.startswith(f"/{HEALTH}/"):
            metadata: Any = handler_call_details.invocation_metadata
            await self._keys.authenticate(metadata)  # the error interceptor around it answers
        return await continuation(handler_call_details)
