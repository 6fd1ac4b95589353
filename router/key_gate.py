"""Where API keys are asked for: before gRPC or HTTP has read a byte of a request's body.

Health is open, for probes; everything else, reflection included, needs a key.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from router.keys import KeyRing
from rpc.handlers import Handler
from rpc.health import SERVICE_NAME as HEALTH


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
            self._keys.authenticate(metadata)  # what it raises is answered by the outermost
        return await continuation(handler_call_details)
