"""Ends streams whose clients do not read.

A handler waits in `write` for as long as HTTP/2's flow control demands, which is for ever if its
client has stopped reading; everything that the handler holds would stay in memory.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

from signalbox_contract.errors import ResourceExhausted
from signalbox_rpc.interceptors.call_handlers import Context, Handler, WrappingInterceptor, wrap
from signalbox_rpc.interceptors.response_stream import ClientStalled, StallGuard, Write


class SlowClientInterceptor(WrappingInterceptor):
    """Bounds each write of a stream; must be the innermost interceptor.

    Args:
        timeout_s: seconds that a client may read nothing while a write waits.
        methods: full names of those that are bounded; None is all.
    """

    def __init__(self, timeout_s: float, *, methods: Collection[str] | None = None) -> None:
        self._timeout_s = timeout_s
        self._methods = methods

    def wrapped(self, handler: Handler, method: str) -> Handler:
        is_bounded = self._methods is None or method in self._methods
        is_bounded = is_bounded and handler.response_streaming
        return wrap(handler, writing=self._writing) if is_bounded else handler

    @contextmanager
    def _writing(self, context: Context) -> Iterator[Write]:
        # Otherwise gRPC sends the metadata with the first message, and if that is given up, once
        # more with the status, which fails: the client would hear nothing.
        begin = partial(context.send_initial_metadata, ())
        guard = StallGuard(self._timeout_s, context.write, begin=begin)
        try:
            yield guard.write
        except ClientStalled as error:
            raise ResourceExhausted(f"the client does not read: {error}") from None
        finally:
            guard.close()
