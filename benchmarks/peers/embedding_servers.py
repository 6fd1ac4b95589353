"""Servers of embeddings, each asked at its /v1/embeddings in float32."""

import sys
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.peers.builds import version
from benchmarks.peers.process import HOST, PeerProcess, PeerUnavailable, existing, is_healthy
from benchmarks.peers.signalbox_server import our_build, service_name
from benchmarks.peers.vllm_server import vllm_build, vllm_environment

_SCRIPT = Path(__file__).parent / "scripts/run_sentence_transformers.py"


class EmbeddingServer(PeerProcess):
    """A participant that embeds texts."""

    health_path = "/health"

    def __init__(
        self,
        model: Path,
        *,
        num_threads: int,
        log_folder: Path,
        extra_arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(log_folder=log_folder, extra_arguments=extra_arguments)
        self._model = model
        self._num_threads = num_threads

    @property
    def url(self) -> str:
        """The base of its OpenAI API."""
        return f"http://{HOST}:{self.port}/v1"

    async def is_ready(self) -> bool:
        return await is_healthy(HOST, self.port, path=self.health_path)


class SignalboxEmbeddings(EmbeddingServer):
    """`signalbox serve`."""

    name = "signalbox"

    def command(self) -> list[str]:
        ports = ["--grpc-port", "0", "--http-port", str(self.port)]
        serve = ["serve", str(self._model), *ports, "--device", "cpu", "--log-level", "warning"]
        return [sys.executable, "-m", "signalbox", *serve, *self.extra_arguments]

    def build(self) -> str:
        return our_build()

    def process_name(self, process: psutil.Process) -> str:
        return service_name(process)


class _Peer(EmbeddingServer):
    freezes = True
    environment_name: str

    def __init__(
        self, model: Path, folder: Path | None, *, num_threads: int, log_folder: Path
    ) -> None:
        super().__init__(model, num_threads=num_threads, log_folder=log_folder)
        self._folder = folder

    @property
    def _environment_folder(self) -> Path:
        if self._folder is None:
            raise PeerUnavailable("no --peers")
        return self._folder / self.environment_name

    def _program(self, name: str) -> str:
        return str(existing(self._environment_folder / "bin" / name))

    @abstractmethod
    def command(self) -> list[str]: ...


class SentenceTransformersServer(_Peer):
    """sentence-transformers behind our smallest server; from our own environment if the folder of
    peers has none for it."""

    name = "sentence-transformers"
    environment_name = "st"
    health_path = "/v1/models"

    @property
    def _environment_folder(self) -> Path:
        own = None if self._folder is None else self._folder / self.environment_name
        return own if own is not None and own.is_dir() else Path(sys.prefix)

    def command(self) -> list[str]:
        given = ["--model", str(self._model), "--port", str(self.port)]
        threads = ["--num-threads", str(self._num_threads)]
        return [self._program("python"), str(_SCRIPT), *given, *threads]

    def build(self) -> str:
        folder = self._environment_folder
        torch = version(folder, "torch")
        return f"sentence-transformers {version(folder, 'sentence_transformers')}, torch {torch}"


class InfinityServer(_Peer):
    """infinity-emb with its PyTorch engine."""

    name = "infinity-emb"
    environment_name = "infinity"

    def command(self) -> list[str]:
        given = ["v2", "--model-id", str(self._model), "--port", str(self.port), "--host", HOST]
        how = ["--url-prefix", "/v1", "--engine", "torch", "--device", "cpu", "--dtype", "float32"]
        return [self._program("infinity_emb"), *given, *how, "--no-bettertransformer"]

    async def is_ready(self) -> bool:
        return await is_healthy(HOST, self.port, path="/v1/models")

    def environment(self) -> dict[str, str]:
        threads = str(self._num_threads)
        return {"OMP_NUM_THREADS": threads, "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}

    def build(self) -> str:
        folder = self._environment_folder
        return f"infinity-emb {version(folder, 'infinity_emb')}, torch {version(folder, 'torch')}"


class VllmEmbeddings(_Peer):
    """vLLM on a CPU, in the setting of `compare`."""

    name = "vLLM"
    environment_name = "vllm"

    def command(self) -> list[str]:
        given = ["--model", str(self._model), "--port", str(self.port), "--host", HOST]
        how = ["--runner", "pooling", "--dtype", "float32", "--served-model-name", "m"]
        python = self._program("python")
        return [python, "-m", "vllm.entrypoints.openai.api_server", *given, *how]

    def environment(self) -> dict[str, str]:
        assert self._folder is not None, "its command was made"
        return vllm_environment(self._folder, num_threads=self._num_threads)

    def build(self) -> str:
        assert self._folder is not None, "its command was made"
        return vllm_build(self._folder)


class RunningServer(EmbeddingServer):
    """A server that runs already, on whatever machine."""

    def __init__(self, name: str, url: str, *, log_folder: Path) -> None:
        self.name = name
        super().__init__(Path(), num_threads=0, log_folder=log_folder)
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def command(self) -> list[str]:
        raise PeerUnavailable("it runs already")

    async def start(self) -> None:
        """Does nothing: it runs already."""
