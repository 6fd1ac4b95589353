"""Libraries without a server: each runs a script of benchmarks/peers/scripts, or a program."""

import asyncio
import json
import os
import re
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.builds import JIT, instruction_sets, version
from benchmarks.peers.llama_server import (
    IK_FLAGS,
    IK_NOTE,
    ik_binaries,
    ik_build,
    llama_binaries,
    llama_build,
)
from benchmarks.peers.process import HOST, PeerProcess, PeerUnavailable, existing
from benchmarks.peers.signalbox_server import our_build
from benchmarks.peers.vllm_server import vllm_build, vllm_environment

SCRIPTS = Path(__file__).parent / "scripts"
_ROW = re.compile(r"\{|\|\s*\d")
"""Beginning of a result of llama-batched-bench, as JSON or as a row of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that was generated at once."""

    seconds: float
    num_tokens: list[int]
    num_found: int | None = None
    """Prompt tokens that were found in a prefix cache; None if it does not tell."""


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
            raise PeerUnavailable(f"ended while it generated: {self._last_words()}")
        return Batch(**json.loads(answer))


class SignalboxOffline(OfflineProcess):
    """Our `LLM`, in one process."""

    name = "signalbox LLM"

    def script(self) -> tuple[Path, str, Path]:
        return Path(sys.executable), "run_signalbox.py", self.folder

    def build(self) -> str:
        return our_build()

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class VllmOffline(OfflineProcess):
    name = "vLLM LLM"

    def script(self) -> tuple[Path, str, Path]:
        return existing(self.folder / "vllm/bin/python"), "run_vllm.py", self.folder / "smol"

    def build(self) -> str:
        return vllm_build(self.folder)

    def environment(self) -> dict[str, str]:
        return vllm_environment(self.folder, num_threads=self.num_threads)


class OpenVinoOffline(OfflineProcess):
    name = "OpenVINO GenAI F16"

    def script(self) -> tuple[Path, str, Path]:
        model = existing(self.folder / "smol-f16.gguf")
        return existing(self.folder / "ov/bin/python"), "run_openvino.py", model

    def build(self) -> str:
        return f"openvino-genai {version(self.folder / 'ov', 'openvino_genai')}, {JIT}"


class OrtGenAiOffline(OfflineProcess):
    """ONNX Runtime GenAI on a model that its own builder made; one batch is one generator."""

    name = "ORT GenAI int4"
    model_name = "smol-ort-int4"

    def script(self) -> tuple[Path, str, Path]:
        python = existing(self.folder / "ortgenai/bin/python")
        return python, "run_ort_genai.py", existing(self.folder / self.model_name)

    def build(self) -> str:
        environment = self.folder / "ortgenai"
        name = "lib/python3.*/site-packages/onnxruntime/capi/onnxruntime_pybind11_state.*.so"
        library = next(environment.glob(name), environment / "onnxruntime")
        versions = f"onnxruntime-genai {version(environment, 'onnxruntime_genai')}"
        return f"{versions}, onnxruntime {version(environment, 'onnxruntime')}, " + (
            instruction_sets(library)
        )


class Float32OrtGenAiOffline(OrtGenAiOffline):
    name = "ORT GenAI float32"
    model_name = "smol-ort-fp32"


class MistralRsOffline(OfflineProcess):
    """mistral.rs as a library, for its wheel has no server; it computes in float32 on a CPU."""

    name = "mistral.rs"
    model_name = "smol-mistralrs"

    def script(self) -> tuple[Path, str, Path]:
        python = existing(self.folder / "mistralrs/bin/python")
        return python, "run_mistralrs.py", existing(self.folder / self.model_name)

    def build(self) -> str:
        environment = self.folder / "mistralrs"
        name = "lib/python3.*/site-packages/mistralrs/mistralrs.abi3.so"
        library = next(environment.glob(name), environment / "mistralrs.abi3.so")
        return f"mistralrs {version(environment, 'mistralrs')}, {instruction_sets(library)}"

    def environment(self) -> dict[str, str]:
        return {"HF_HUB_OFFLINE": "1", "RAYON_NUM_THREADS": str(self.num_threads)}


class LlamaBatchedBench(OfflineProcess):
    """llama.cpp's own benchmark: it makes its prompts up, and loads the model for each run."""

    name = "llama.cpp BF16"
    file_name = "smol-bf16.gguf"
    binaries = staticmethod(llama_binaries)
    own_flags: ClassVar[tuple[str, ...]] = ("--output-format", "jsonl")

    def script(self) -> tuple[Path, str, Path]:
        raise NotImplementedError

    async def start(self) -> None:
        existing(self.binaries(self.folder) / "llama-batched-bench")
        existing(self.folder / self.file_name)

    def build(self) -> str:
        return llama_build(self.folder)

    def batch_of(self, row: str) -> Batch:
        """Returns the batch that a row of its output is about."""
        read = json.loads(row)
        return Batch(seconds=read["t"], num_tokens=[read["tg"]] * read["pl"])

    async def generate(self, prompts: list[list[int]], *, max_tokens: int) -> Batch:
        status, rows = await self._run(prompts, max_tokens)
        if status or not rows:
            raise PeerUnavailable(f"llama-batched-bench ended with status {status}")
        return self.batch_of(rows[-1])

    async def _run(self, prompts: list[list[int]], max_tokens: int) -> tuple[int, list[str]]:
        folder = self.binaries(self.folder)
        process = await asyncio.create_subprocess_exec(
            str(folder / "llama-batched-bench"),
            *self._options(
                num_prompt=len(prompts[0]), num_sequences=len(prompts), max_tokens=max_tokens
            ),
            *self.own_flags,
            *self.extra_arguments,
            env=os.environ | {"LD_LIBRARY_PATH": str(folder)},
            cwd=self._log_path.parent,  # ik_llama.cpp leaves a log there
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,  # where ik_llama.cpp prints its table
        )
        output, _ = await process.communicate()
        rows = [line for line in output.decode(errors="replace").splitlines() if _ROW.match(line)]
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
        }
        return [str(part) for pair in options.items() for part in pair]


class QuantizedLlamaBatchedBench(LlamaBatchedBench):
    name = "llama.cpp Q4_1"
    file_name = "smol-q4_1.gguf"


class IkLlamaBatchedBench(LlamaBatchedBench):
    """The same of ik_llama.cpp, which prints a table."""

    name = "ik_llama.cpp BF16"
    binaries = staticmethod(ik_binaries)
    own_flags = IK_FLAGS

    async def start(self) -> None:
        self.note = IK_NOTE
        await super().start()

    def build(self) -> str:
        return ik_build(self.folder)

    def batch_of(self, row: str) -> Batch:
        cells = row.strip("| ").split("|")
        return Batch(seconds=float(cells[8]), num_tokens=[int(cells[1])] * int(cells[2]))


class QuantizedIkLlamaBatchedBench(IkLlamaBatchedBench):
    name = "ik_llama.cpp Q4_1"
    file_name = "smol-q4_1.gguf"
