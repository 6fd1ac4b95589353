"""Libraries without a server: each runs a script of benchmarks/peers/scripts, or a program."""

import asyncio
import json
import os
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.llama_server import NO_REPACK, llama_binaries
from benchmarks.peers.process import HOST, PeerProcess, PeerUnavailable, existing
from benchmarks.peers.vllm_server import vllm_environment

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that was generated at once."""

    seconds: float
    num_tokens: list[int]


class OfflineProcess(PeerProcess):
    """A participant that is given a list of prompts at a time."""

    freezes = True

    def __init__(
        self,
        folder: Path | None,
        *,
        num_threads: int,
        log_folder: Path,
        extra_arguments: Sequence[str] = (),
        label: str = "",
    ) -> None:
        super().__init__(log_folder=log_folder, extra_arguments=extra_arguments, label=label)
        self.folder = folder or Path()
        self.num_threads = num_threads

    @abstractmethod
    def script(self) -> tuple[Path, str, Path]:
        """Returns interpreter, script and model. Raises PeerUnavailable."""

    def command(self) -> list[str]:
        python, script, model = self.script()
        options = ["--port", str(self.port), "--num-threads", str(self.num_threads)]
        path = str(SCRIPTS / script)
        return [str(python), path, "--model", str(model), *options, *self.extra_arguments]

    async def is_ready(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        writer.close()
        return True

    async def generate(self, prompts: list[list[int]], *, max_tokens: int) -> Batch:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            asked = {"prompts": prompts, "max_tokens": max_tokens}
            writer.write(json.dumps(asked).encode() + b"\n")
            answer = await reader.readline()
        finally:
            writer.close()
        if not answer:
            raise PeerUnavailable("ended while it generated; its log says why")
        return Batch(**json.loads(answer))


class SignalboxOffline(OfflineProcess):
    """Our `LLM`, in one process."""

    name = "signalbox LLM"

    def script(self) -> tuple[Path, str, Path]:
        return Path(sys.executable), "run_signalbox.py", self.folder

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class VllmOffline(OfflineProcess):
    name = "vLLM LLM"

    def script(self) -> tuple[Path, str, Path]:
        return existing(self.folder / "vllm/bin/python"), "run_vllm.py", self.folder / "smol"

    def environment(self) -> dict[str, str]:
        return vllm_environment(self.folder, num_threads=self.num_threads)


class OpenVinoOffline(OfflineProcess):
    name = "OpenVINO GenAI F16"

    def script(self) -> tuple[Path, str, Path]:
        model = existing(self.folder / "smol-f16.gguf")
        return existing(self.folder / "ov/bin/python"), "run_openvino.py", model


class TransformersOffline(OfflineProcess):
    name = "transformers"

    def script(self) -> tuple[Path, str, Path]:
        python = existing(self.folder / "base/bin/python")
        return python, "run_transformers.py", existing(self.folder / "smol")


class LlamaBatchedBench(OfflineProcess):
    """llama.cpp's own benchmark: it makes its prompts up, and loads the model for each run."""

    name = "llama.cpp BF16"
    file_name = "smol-bf16.gguf"

    def script(self) -> tuple[Path, str, Path]:
        raise NotImplementedError

    async def start(self) -> None:
        existing(llama_binaries(self.folder) / "llama-batched-bench")
        existing(self.folder / self.file_name)

    async def generate(self, prompts: list[list[int]], *, max_tokens: int) -> Batch:
        status, rows = await self._run(prompts, max_tokens)
        if status < 0 and NO_REPACK not in self.extra_arguments:  # as of the server
            self.extra_arguments += (NO_REPACK,)
            self.note = f"with {NO_REPACK}: without it, it ended with status {status}"
            status, rows = await self._run(prompts, max_tokens)
        if not rows:
            raise PeerUnavailable(f"llama-batched-bench ended with status {status}")
        row = json.loads(rows[-1])
        return Batch(seconds=row["t"], num_tokens=[row["tg"]] * row["pl"])

    async def _run(self, prompts: list[list[int]], max_tokens: int) -> tuple[int, list[str]]:
        folder = llama_binaries(self.folder)
        process = await asyncio.create_subprocess_exec(
            str(folder / "llama-batched-bench"),
            *self._options(
                num_prompt=len(prompts[0]), num_sequences=len(prompts), max_tokens=max_tokens
            ),
            *self.extra_arguments,
            env=os.environ | {"LD_LIBRARY_PATH": str(folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
        rows = [line for line in output.decode().splitlines() if line.startswith("{")]
        assert process.returncode is not None, "it has ended"
        return process.returncode, rows

    def _options(self, *, num_prompt: int, num_sequences: int, max_tokens: int) -> list[str]:
        options = {
            "-m": self.folder / self.file_name,
            "-t": self.num_threads,
            "-tb": self.num_threads,
            "-npp": num_prompt,
            "-ntg": max_tokens,
            "-npl": num_sequences,
            "-c": (num_prompt + max_tokens) * num_sequences,
            "-b": 2048,
            "--output-format": "jsonl",
        }
        return [str(part) for pair in options.items() for part in pair]


class QuantizedLlamaBatchedBench(LlamaBatchedBench):
    name = "llama.cpp Q4_1"
    file_name = "smol-q4_1.gguf"
