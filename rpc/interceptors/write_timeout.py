"""Ends streams whose clients do not read.

A handler waits in `write` for as long as HTTP/2's flow control demands, which is for ever if its
client has stopped reading; everything that the handler holds would stay in memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from contract.errors import ResourceExhausted
from rpc.interceptors.call_handlers import Context, Handler, WrappingInterceptor, wrap
from rpc.interceptors.response_stream import ClientStalled, StallGuard, Write


class SlowClientInterceptor(WrappingInterceptor):
    """Bounds each write of a stream; must be the innermost interceptor.

    Args:
        timeout_s: seconds that a client may read nothing while a write waits.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def wrapped(self, handler: Handler, method: str) -> Handler:
        return wrap(handler, writing=self._writing) if handler.response_streaming else handler

    @contextmanager
    def _writing(self, context: Context) -> Iterator[Write]:
        guard = StallGuard(self._timeout_s, context.write)
        try:
            yield guard.write
        except ClientStalled as error:
            raise ResourceExhausted(f"the client does not read: {error}") from None
        finally:
            guard.close()
