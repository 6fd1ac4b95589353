"""Bounds the requests that a client pipelines on one HTTP connection before it reads the answers.

With httptools all requests that arrive in one read are parsed at once. With h11, which has no
`pipeline`, a request is parsed only after the one before it was answered.
"""

from typing import Any

from signalbox_rpc.http.port_limits import MAX_PIPELINED


def cut_pipeline(connection: Any) -> bool:
    """Discards requests past the limit without answers; the client sends them again.

    Returns whether there were any. The connection then closes after the last answer.
    """
    pipeline = getattr(connection, "pipeline", None)
    if not pipeline or len(pipeline) < MAX_PIPELINED:
        return False
    while len(pipeline) >= MAX_PIPELINED:  # one more is being answered
        pipeline.popleft()
    connection.cycle, _ = pipeline[0]
    connection.cycle.keep_alive = False
    return True
