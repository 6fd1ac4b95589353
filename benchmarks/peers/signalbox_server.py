"""Ourselves: `signalbox serve`, asked over the public gRPC API."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import psutil

from benchmarks.harness.closed_loop import generate
from benchmarks.peers.process import HOST, ServerProcess
from signalbox.version import VERSION
from signalbox_kernels.native import ISA_VARIABLE, NativeUnavailable, best_isa
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel

_SERVICES = ("router", "scheduler", "worker")


def our_build() -> str:
    """Returns our version and the instruction set that a native worker takes here."""
    try:
        isa = best_isa().name.lower()
    except NativeUnavailable as why:
        return f"{VERSION}, no native worker: {why}"
    forced = f", forced by {ISA_VARIABLE}" if os.environ.get(ISA_VARIABLE) else ""
    return f"{VERSION}, {isa}{forced}"


def service_name(process: psutil.Process) -> str:
    """Returns which service of a stack a process is."""
    return next((word for word in process.cmdline() if word in _SERVICES), "serve")


class SignalboxServer(ServerProcess):
    """The local stack of one model."""

    name = "signalbox"

    def __init__(
        self,
        model: Path | None,
        *,
        log_folder: Path,
        extra_arguments: Sequence[str] = (),
        label: str = "",
    ) -> None:
        """Starts a stack; without a model its worker is simulated."""
        super().__init__(log_folder=log_folder, extra_arguments=extra_arguments, label=label)
        self._model = model
        self._channel: grpc.aio.Channel | None = None

    def command(self) -> list[str]:
        model = str(self._model) if self._model else "--simulate"
        ports = ["--grpc-port", str(self.port), "--no-http"]
        serve = ["serve", model, *ports, "--log-level", "warning"]
        return [sys.executable, "-m", "signalbox", *serve, *self.extra_arguments]

    async def is_ready(self) -> bool:
        self._channel = self._channel or open_channel(f"{HOST}:{self.port}")
        with suppress(grpc.aio.AioRpcError):
            await pb_grpc.InferenceServiceStub(self._channel).GetModel(pb.GetModelRequest())
            return True
        return False

    def build(self) -> str:
        return our_build() if self._model else ""

    def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
        return generate(self.stub(), token_ids, max_tokens=max_tokens, read_usage=self._read_usage)

    def _read_usage(self, usage: pb.Usage) -> None:
        self.add_found(usage.cached_tokens)
        self.add_drafts(usage.speculation.num_drafts, usage.speculation.num_accepted)

    def beams(self, token_ids: list[int], *, max_tokens: int, width: int) -> AsyncIterator[int]:
        return generate(self.stub(), token_ids, max_tokens=max_tokens, beam_width=width)

    def stub(self) -> pb_grpc.InferenceServiceStub:
        """Returns the public API; the server must be ready."""
        assert self._channel is not None, "it must be ready"
        return pb_grpc.InferenceServiceStub(self._channel)

    def stop(self) -> None:
        super().stop()
        self._channel = None

    def process_name(self, process: psutil.Process) -> str:
        return service_name(process)
