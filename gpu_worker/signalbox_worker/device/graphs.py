"""The interface of graphs: record work once, and run it again with one launch.

A graph reads and writes the memory that its work did when it was recorded, whatever lies there by
then, and nothing of it depends on what the host does. So its inputs stay in one place, and no
shape, index or branch may come from a value that the device computed.
"""

from collections.abc import Callable
from typing import Protocol


class NotCapturable(RuntimeError):
    """The work waits for the device, so it cannot be recorded; the message says where."""


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Enqueues the recorded work on the stream that computes."""
        ...


class GraphRecorder(Protocol):
    """Records graphs of one device, which share one pool of memory for their results.

    They may share it, because no two run at a time, and temporary results are read only within a
    graph.
    """

    def capture(self, work: Callable[[], None]) -> Graph:
        """Runs `work` until nothing is compiled or set up any more, and records it.

        Raises NotCapturable.
        """
        ...

    def used_bytes(self) -> int:
        """Returns the bytes of the device in use by all processes."""
        ...
