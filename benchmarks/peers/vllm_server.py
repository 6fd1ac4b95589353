"""vLLM on a CPU, by its OpenAI HTTP server and by its gRPC server.

The setting is the best that we know on two cores: both threads bound, no core reserved, Intel's
OpenMP preloaded.
"""

from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import psutil
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from benchmarks.peers.builds import instruction_sets, version
from benchmarks.peers.process import HOST, ServerProcess, existing, is_healthy
from signalbox.bench.http_stream import HttpAddress, post, post_for_events
from signalbox_rpc.transport.channel import open_channel

COMPLETIONS = "/v1/completions"


def vllm_environment(folder: Path, *, num_threads: int) -> dict[str, str]:
    """Returns the variables for vLLM's best performance."""
    return {
        "LD_PRELOAD": str(existing(folder / "vllm/lib/libiomp5.so")),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "OMP_NUM_THREADS": str(num_threads),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def vllm_build(folder: Path) -> str:
    """Returns version and instruction sets of vLLM for CPUs."""
    library = next(folder.glob("vllm/lib/python3.*/site-packages/vllm/_C.abi3.so"), folder / "_C")
    return f"vllm-cpu {version(folder / 'vllm', 'vllm_cpu')}, {instruction_sets(library)}"


class _VllmServer(ServerProcess):
    freezes = True

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

    def environment(self) -> dict[str, str]:
        return vllm_environment(self._folder, num_threads=self._num_threads)

    def build(self) -> str:
        return vllm_build(self._folder)

    def process_name(self, process: psutil.Process) -> str:
        return "engine" if "VLLM::" in " ".join(process.cmdline()) else "server"

    def _command(self, module: str) -> list[str]:
        python = existing(self._folder / "vllm/bin/python")
        model = existing(self._folder / "smol/model.safetensors").parent
        options = ["--model", str(model), "--dtype", "bfloat16", "--port", str(self.port)]
        return [str(python), "-m", module, *options, *self.extra_arguments]


class VllmHttpServer(_VllmServer):
    """Its OpenAI server; each event says how many tokens have come so far."""

    name = "vLLM HTTP"

    def command(self) -> list[str]:
        options = ["--host", HOST, "--served-model-name", "m", "--enable-prompt-tokens-details"]
        return [*self._command("vllm.entrypoints.openai.api_server"), *options]

    async def is_ready(self) -> bool:
        return await is_healthy(HOST, self.port)

    @property
    def endpoint(self) -> HttpAddress:
        """Its HTTP address."""
        return HttpAddress(host=HOST, port=self.port)

    async def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
        body = completion(token_ids, max_tokens) | {
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        num_tokens = 0
        async for event in post_for_events(self.endpoint, COMPLETIONS, body):
            so_far = event["usage"]["completion_tokens"]
            yield so_far - num_tokens
            num_tokens = so_far
            if not event["choices"]:  # the last event, of the whole answer
                self.add_found(num_cached_of(event["usage"]))

    async def beams(
        self, token_ids: list[int], *, max_tokens: int, width: int
    ) -> AsyncIterator[int]:
        body = completion(token_ids, max_tokens) | {"use_beam_search": True, "n": width}
        answer = await post(self.endpoint, COMPLETIONS, body)
        yield answer["usage"]["completion_tokens"]


def num_cached_of(usage: dict[str, Any]) -> int:
    """Returns the prompt tokens that were not computed."""
    return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)


def completion(token_ids: list[int], max_tokens: int) -> dict[str, Any]:
    """Returns the body of a greedy request."""
    return {
        "model": "m",
        "prompt": token_ids,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


class VllmGrpcServer(_VllmServer):
    """Its gRPC server: token ids in, token ids out, as behind a gateway."""

    name = "vLLM gRPC"
    _ids = count()

    def command(self) -> list[str]:
        return [*self._command("vllm.entrypoints.grpc_server"), "--host", HOST]

    async def is_ready(self) -> bool:
        self._channel = open_channel(f"{HOST}:{self.port}")
        stub = pb_grpc.VllmEngineStub(self._channel)
        try:
            return bool((await stub.HealthCheck(pb.HealthCheckRequest())).healthy)
        except grpc.aio.AioRpcError:
            return False

    async def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
        request = pb.GenerateRequest(
            request_id=f"r{next(self._ids)}",
            tokenized=pb.TokenizedInput(input_ids=token_ids),
            sampling_params=pb.SamplingParams(
                temperature=0, top_p=1, max_tokens=max_tokens, ignore_eos=True, n=1
            ),
            stream=True,
        )
        async for response in pb_grpc.VllmEngineStub(self._channel).Generate(request):
            if response.HasField("complete"):
                self.add_found(response.complete.cached_tokens)
            yield len(response.chunk.token_ids)
