"""Files of records, each behind its length as a varint: written by a thread, read until they end.

An append only adds to a queue; a thread writes several times a second. So a crash loses at most
that, and may leave half a record, which the reader reports and leaves alone.
"""

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

FLUSH_S = 0.2
MAX_PENDING_BYTES = 256 << 20
"""A disk that is slower than the scheduler ends the recording, not the scheduler's memory."""


class CannotRecord(OSError):
    """The file cannot be made; says why in one line."""

    def __init__(self, path: str, error: OSError | ValueError) -> None:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        super().__init__(f"cannot record to {path!r}: {reason}; name a file that can be made")


class RecordWriter:
    """Appends to a file that its owner alone may read. An older file of that name is kept."""

    def __init__(self, path: str) -> None:
        """Raises CannotRecord."""
        self._path = path
        try:
            if Path(path).is_dir():  # which `replace` would move away
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if Path(path).exists():
                Path(path).replace(path + ".old")
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except (OSError, ValueError) as error:
            raise CannotRecord(path, error) from None
        self._pending: deque[bytes] = deque()
        self._num_bytes = 0  # appended; only the appending thread counts here
        self._num_written_bytes = 0  # and only the writing thread here
        self._is_ended = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def append(self, record: bytes) -> None:
        """Queues a record; a no-op once the recording has ended."""
        if self._is_ended:
            return
        framed = _varint(len(record)) + record
        self._pending.append(framed)
        self._num_bytes += len(framed)
        if self._num_bytes - self._num_written_bytes > MAX_PENDING_BYTES:
            self._end(f"the disk is too slow, {MAX_PENDING_BYTES >> 20} MiB wait for it")

    def close(self) -> None:
        """Writes what is left."""
        self._closing.set()
        self._thread.join()
        self._is_ended = True
        os.close(self._file)

    def _write(self) -> None:
        while not self._is_ended:
            is_last = self._closing.wait(FLUSH_S)
            try:
                self._flush()
            except OSError as error:
                self._end(error.strerror or str(error))
            if is_last:
                return

    def _flush(self) -> None:
        records = [self._pending.popleft() for _ in range(len(self._pending))]
        data = memoryview(b"".join(records))
        while data:
            num_bytes = os.write(self._file, data)
            self._num_written_bytes += num_bytes
            data = data[num_bytes:]

    def _end(self, reason: str) -> None:
        self._is_ended = True
        logger.error("the recording %s ends here: %s", self._path, reason)


class RecordReader:
    """Iterates over a file's records; `num_left_over` says how much of a last one was cut off."""

    def __init__(self, path: str) -> None:
        self._data = Path(path).read_bytes()
        self.num_left_over = 0

    def __iter__(self) -> Iterator[bytes]:
        position = 0
        while position < len(self._data):
            start, length = _read_varint(self._data, position)
            if start < 0 or start + length > len(self._data):
                self.num_left_over = len(self._data) - position
                return
            yield self._data[start : start + length]
            position = start + length


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns where the varint ends and its value; (-1, 0) if the data ends first."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position, value
        shift += 7
    return -1, 0
