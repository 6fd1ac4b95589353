"""Divides the files of a tokenizer into chunks, as services send them, and joins them again."""

import hashlib
from collections.abc import AsyncIterable, Iterator, Mapping
from typing import Protocol

MAX_TOKENIZER_BYTES = 256 << 20
"""Bytes of all file names and contents that a service sends: ten times the largest tokenizers."""


MAX_CHUNK_BYTES = 1 << 20


class TokenizerTooLarge(ValueError):
    """The files have more than MAX_TOKENIZER_BYTES."""


class Piece(Protocol):
    """One message of GetTokenizer's stream, from a worker or a scheduler."""

    @property
    def file_name(self) -> str: ...

    @property
    def chunk(self) -> bytes: ...


async def read_files(pieces: AsyncIterable[Piece]) -> dict[str, bytes]:
    """Returns the contents by file name. Raises TokenizerTooLarge before reading more than
    allowed."""
    files: dict[str, bytearray] = {}
    num_bytes = 0
    async for piece in pieces:
        num_bytes += len(piece.chunk) + len(piece.file_name)
        if num_bytes > MAX_TOKENIZER_BYTES:
            raise TokenizerTooLarge(f"its tokenizer has more than {MAX_TOKENIZER_BYTES >> 20} MiB")
        files.setdefault(piece.file_name, bytearray()).extend(piece.chunk)
    return {name: bytes(content) for name, content in files.items()}


def split_files(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the next chunk of each file in turn; an empty file is one empty chunk."""
    for name, content in files.items():
        for start in range(0, max(1, len(content)), MAX_CHUNK_BYTES):
            yield name, content[start : start + MAX_CHUNK_BYTES]


def hash_files(files: Mapping[str, bytes]) -> str:
    """Returns the SHA-256 over name, NUL, length and content of each file, in order of the names.

    The length is 8 bytes, little-endian.
    """
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(name.encode() + b"\0" + len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
