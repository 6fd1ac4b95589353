"""One end of a socket pair between two ranks: whole messages of bytes, and the other end's death.

The system closes a process's sockets however it ends, so the end of the stream is the one sign that
the other process is gone; nothing has to beat or to be polled.
"""

import os
import socket
import threading
from contextlib import suppress
from multiprocessing.connection import Connection


class Channel:
    """Sends from any thread, receives on one."""

    def __init__(self, fd: int) -> None:
        """Owns `fd` from now on."""
        self._socket = socket.socket(fileno=fd)
        self._connection: Connection[bytes, bytes] = Connection(os.dup(fd))
        self._sending = threading.Lock()

    def send(self, data: bytes) -> None:
        """Raises OSError if the other end is gone."""
        with self._sending:
            self._connection.send_bytes(data)

    def receive(self) -> bytes | None:
        """Waits for a message; None if the other end is gone, or this one is closed."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        """Ends the stream at both ends; a descriptor that a thread reads would not close."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
