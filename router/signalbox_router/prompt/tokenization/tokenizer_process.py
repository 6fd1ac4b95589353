"""A process that tokenises long texts, one after the other, within limits.

Tokenising takes up to 200 bytes of memory for each byte of text, and cannot be stopped from within
its process. So `long_texts` runs `main` as a process (`signalbox_rpc.lifetime.limited_program`),
sends it tokenizers and then jobs, and kills it if a job takes too long or is no longer wanted. A
frame is the length of a JSON header, the header, and as many bytes as its `num_bytes` says.
"""

import ctypes
import json
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping
from typing import IO, Any

from tokenizers import Tokenizer

from signalbox_rpc.lifetime.limited_program import limit_job

_LENGTH = struct.Struct("<I")
_MOST_BACK = 64
"""Tokens without a place in the text; each has the place of the token before it."""


def write_frame(stream: IO[bytes], header: Mapping[str, Any], content: bytes = b"") -> None:
    """Writes a header and the bytes that belong to it."""
    encoded = json.dumps({**header, "num_bytes": len(content)}).encode()
    stream.write(_LENGTH.pack(len(encoded)) + encoded)
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Returns a header and its bytes. Raises EOFError if the other side has closed the pipe."""
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    header: dict[str, Any] = json.loads(_read(stream, length))
    return header, _read(stream, header["num_bytes"])


def _read(stream: IO[bytes], num_bytes: int) -> bytes:
    content = stream.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content


def _load(content: bytes) -> Any:
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _answer(
    tokenizers: list[Any], job: Mapping[str, Any], content: bytes
) -> tuple[dict[str, Any], bytes]:
    tokenizer = tokenizers[job["tokenizer"]]
    if job["kind"] == "decode":
        ids = array("I", content).tolist()
        text = tokenizer.decode(ids, skip_special_tokens=job["skip_special_tokens"]).encode()
        is_too_long = len(text) > job["most_bytes"]
        return {"text_bytes": len(text)}, b"" if is_too_long else text
    text = content.decode()
    encode = tokenizer.encode_batch if job["places"] else tokenizer.encode_batch_fast
    (encoding,) = encode([text], add_special_tokens=job["add_special_tokens"])
    last = len(encoding) if job["last"] is None else min(job["last"], len(encoding))
    if job["kind"] == "starts":
        return {}, array("I", _starts(encoding, last)).tobytes()
    ids = encoding.ids
    wanted = set(job["places"] or ())
    places = [(one, *encoding.token_to_chars(i)) for i, one in enumerate(ids) if one in wanted]
    return {"places": places}, array("I", ids[len(ids) - last :]).tobytes()


def _starts(encoding: Any, last: int) -> Iterable[int]:
    """Yields the places where the last tokens begin; one without a place gets that of the one
    before."""
    first = len(encoding) - last
    highest = 0
    for i in range(max(0, first - _MOST_BACK), len(encoding)):
        highest = max(highest, (encoding.token_to_chars(i) or (0, 0))[0])
        if i >= first:
            yield highest


def give_memory_back() -> None:
    """Returns unused memory to the system, if the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def main() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    tokenizers: list[Any] = []  # each a file's content until it is needed
    while True:
        try:
            job, content = read_frame(stdin)
        except EOFError:
            return
        if job["kind"] == "load":
            tokenizers.append(content)
            continue
        if isinstance(tokenizers[job["tokenizer"]], bytes):
            tokenizers[job["tokenizer"]] = _load(tokenizers[job["tokenizer"]])
        limit_job(cpu_s=job["cpu_s"], memory_bytes=job["memory_bytes"])
        header, answer = _answer(tokenizers, job, content)
        write_frame(stdout, header, answer)
        del content, answer
        give_memory_back()
