"""Writes the answers of a batch as lines of JSON, in the form of OpenAI's output files.

Each line is written when its answer arrives. So an interruption leaves complete lines, and at most
one incomplete line at the end; the same command then continues.
"""

import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from signalbox.client.named_files import reading, writing

FLAG = "--output-file"
_BEGIN = b'{"id": "batch_req_'
_ANSWERED = 200


class AnswerFile:
    """The output file of a batch; only one process at a time may open it."""

    def __init__(self, path: Path, answer_ids: Mapping[str, str]) -> None:
        """Opens the file.

        Args:
            answer_ids: ids of the answers to the batch, by custom_id.

        Raises ValueError if the file cannot be written, or another process writes it.
        """
        self._path, self._answer_ids = path, answer_ids
        with writing(path, FLAG):
            self._file: BinaryIO = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ValueError(f"{FLAG} {path}: another process writes it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def resume(self) -> set[str]:
        """Returns the ids of the requests that have an answer. Drops all other lines: failures,
        which are repeated, and an incomplete line.

        Raises ValueError if the file has anything but answers of the batch, or an answer to an
        earlier form of a request, and does not change it then.
        """
        answered, num_lines = set[str](), 0
        with reading(self._path, FLAG):
            for _, custom_id in self._read():
                num_lines += 1
                if custom_id is not None:
                    answered.add(custom_id)
        if num_lines > len(answered):
            self._drop_others()
        return answered

    def _read(self) -> Iterator[tuple[bytes, str | None]]:
        """Yields each line with the id of the request that it answers, or None. Raises
        ValueError."""
        self._file.seek(0)
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n") and line.startswith(_BEGIN[: len(line)]):
                yield line, None  # it is incomplete
                continue
            try:
                answer_id, custom_id, status = _parse(line)
            except (ValueError, LookupError, TypeError, RecursionError):
                named = f"line {number} is not an answer of a batch"
                raise ValueError(f"{FLAG} {self._path}: {named}; give another file") from None
            if custom_id not in self._answer_ids:
                named = f"has an answer to {custom_id[:40]!r}, which is not in the batch"
                raise ValueError(f"{FLAG} {self._path} {named}; give another file")
            if status == _ANSWERED and answer_id != self._answer_ids[custom_id]:
                named = f"has an answer to {custom_id[:40]!r}, and that request has changed since"
                raise ValueError(
                    f"{FLAG} {self._path} {named}; remove the answer's line, or give another file"
                )
            yield line, custom_id if status == _ANSWERED else None

    def _drop_others(self) -> None:
        """Replaces the file by one with only the answers; one of the two is always complete."""
        target, seen = self._path.resolve(), set[str | None]({None})
        temporary = target.with_name(f"{target.name}.tmp")
        with writing(temporary), temporary.open("wb") as file:
            for line, custom_id in self._read():
                if custom_id not in seen:
                    file.write(line)
                    seen.add(custom_id)
        new = temporary.open("a+b")
        fcntl.flock(new, fcntl.LOCK_EX)
        temporary.replace(target)
        self._file.close()
        self._file = new

    def add(
        self, custom_id: str, response: dict[str, Any] | None, error: dict[str, Any] | None = None
    ) -> None:
        """Writes a line. One of `response` and `error` is None."""
        line = {
            "id": self._answer_ids[custom_id],
            "custom_id": custom_id,
            "response": response,
            "error": error,
        }
        with writing(self._path, FLAG):
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()


def _parse(line: bytes) -> tuple[str, str, int | None]:
    """Returns the id, the request's custom_id and the status of a line. Raises ValueError,
    LookupError, TypeError or RecursionError for another line."""
    content = json.loads(line)
    custom_id, response = content["custom_id"], content["response"]
    if not (line.startswith(_BEGIN) and isinstance(custom_id, str)):
        raise ValueError("no line of ours")
    status = None if response is None else response["status_code"]
    return content["id"], custom_id, status
