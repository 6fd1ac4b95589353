"""The baseline of gRPC alone: a server that only writes a token to each stream.

It does nothing else than `context.write`, at the pace of `paced_scheduler`, so it is the bound of
what a router in Python can reach: its CPU for a message, and its latency.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from benchmarks.harness.paced_scheduler import MIN_VOCAB_SIZE, NUM_STEP_IDS, Pace
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc


@dataclass(slots=True)
class BareStream(pb_grpc.InferenceServiceServicer):
    """Serves the clients of one pace."""

    pace: Pace
    sent_ns: list[int] = field(default_factory=list)
    """Start of sending each step, in nanoseconds on the monotonic clock."""
    _waiters: list["asyncio.Future[int]"] = field(default_factory=list)
    """Futures of the streams, in the order in which they wait for their next token."""

    async def Generate(
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        for _ in range(request.sampling_params.max_tokens):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            response = pb.GenerateResponse(request_id="0" * 32)
            response.outputs.add(text=" word", token_ids=[await waiter])
            yield response

    async def run(self) -> None:
        """Sends a step of some streams after the other, once all of them wait."""
        size, due = self.pace.num_requests // self.pace.num_groups, 0.0
        while True:
            due = max(due + self.pace.step_s, time.perf_counter() - 1)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if not self.sent_ns and len(self._waiters) < self.pace.num_requests:
                continue
            chosen, self._waiters = self._waiters[:size], self._waiters[size:]
            token_id = MIN_VOCAB_SIZE + len(self.sent_ns) % NUM_STEP_IDS
            self.sent_ns.append(time.monotonic_ns())
            for waiter in chosen:
                if not waiter.done():  # its client has not left
                    waiter.set_result(token_id)


async def serve(stream: BareStream) -> tuple[grpc.aio.Server, int]:
    """Starts a server; returns it and its port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    pb_grpc.add_InferenceServiceServicer_to_server(stream, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port
