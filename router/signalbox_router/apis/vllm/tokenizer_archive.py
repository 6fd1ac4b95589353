"""The zip file of the model's tokenizer for GetTokenizer, compressed once for all callers."""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CHUNK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class TokenizerArchive:
    """A zip file of a tokenizer's files; equal files give equal archives."""

    content: bytes
    sha256: str

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> "TokenizerArchive":
        """Returns the compressed archive; blocks meanwhile."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(files.items()):
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        content = buffer.getvalue()
        return cls(content, hashlib.sha256(content).hexdigest())

    def chunks(self) -> Iterator[tuple[bytes, str]]:
        """Yields the content in pieces; the last piece has the digest, others have ""."""
        for start in range(0, len(self.content), CHUNK_BYTES):
            end = start + CHUNK_BYTES
            digest = self.sha256 if end >= len(self.content) else ""
            yield self.content[start:end], digest


class TokenizerArchives:
    """Keeps the archive that was made last."""

    def __init__(self) -> None:
        self._files: Mapping[str, bytes] | None = None
        self._archive: TokenizerArchive | None = None
        self._making = asyncio.Lock()

    async def of(self, files: Mapping[str, bytes]) -> TokenizerArchive:
        """Returns the archive of these files; concurrent calls wait for one compression."""
        async with self._making:
            if self._archive is None or files is not self._files:
                self._archive = await asyncio.to_thread(TokenizerArchive.of, files)
                self._files = files
            return self._archive
