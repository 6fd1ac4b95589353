"""Bounds the requests that a client pipelines on one HTTP connection before it reads the answers.

With httptools all requests that arrive are parsed at once. With h11, which has no `pipeline`, a
request is parsed only after the one before it was answered.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from rpc.http.port_limits import MAX_PIPELINED


class PipelineFlow(FlowControl):
    """Stops reading while whole requests wait for the ones before them."""

    def __init__(self, transport: asyncio.Transport, connection: Any) -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        if not getattr(self._connection, "pipeline", None):
            super().resume_reading()


def cut_pipeline(connection: Any) -> bool:
    """Discards requests past the limit without answers; the client sends them again.

    Returns whether there were any. The connection then closes after the last answer.
    """
    pipeline = getattr(connection, "pipeline", None)
    if not pipeline or len(pipeline) <= MAX_PIPELINED:
        return False
    while len(pipeline) > MAX_PIPELINED:
        pipeline.popleft()
    connection.cycle, _ = pipeline[0]
    connection.cycle.keep_alive = False
    FlowControl.resume_reading(
        connection.flow
    )  # closing with unread bytes would reset the connection
    return True
