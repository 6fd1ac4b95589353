"""Eight seeded streams beside an attack, read by a process of their own.

An attack keeps the test's process busy, so gaps that it measured would be its own. This one is told
"start" and "stop" on standard input. It says as JSON what each stream says alone, "streaming" when
each of them runs, and a `Report` after the last has ended.
"""

import asyncio
import dataclasses
import json
import math
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import httpx2

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc

NUM_STREAMS = 8
"""Those with even numbers are read over gRPC, the others over HTTP."""
NUM_TOKENS = 25
RETRY_S = 0.2
READ_S = 300.0


@dataclass(slots=True)
class Report:
    """What the streams saw from "start" to the end of the last of them."""

    num_whole: int = 0
    """Streams that ended and said what they say alone."""
    wrong: list[str] = field(default_factory=list)
    """What others said, or how they failed."""
    longest_gap_s: float = 0.0
    """Between two pieces of one stream's text; the first may wait for its turn in the queue."""


class Streams:
    """The streams' connections, what they say alone, and what they have said since "start"."""

    def __init__(
        self, channel: grpc.aio.Channel, http: httpx2.AsyncClient, *, alone: list[str]
    ) -> None:
        """`alone` is what each stream says alone; empty, it is learned."""
        self._stub = pb_grpc.InferenceServiceStub(channel)
        self._http = http
        self._alone = alone
        self._report = Report()
        self._stopping = asyncio.Event()

    async def learn(self) -> list[str]:
        """Asks one stream after the other for what is not known; returns what each says alone."""
        for number in range(len(self._alone), NUM_STREAMS):
            self._alone.append("".join([piece async for piece in self._pieces(number)]))
        if len(set(self._alone)) < NUM_STREAMS or not all(self._alone):
            raise RuntimeError(f"streams must differ, and say something: {self._alone}")
        return self._alone

    async def start(self) -> list["asyncio.Task[None]"]:
        """Returns when each stream has said something."""
        self._report, self._stopping = Report(), asyncio.Event()
        begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
        tasks = [
            asyncio.create_task(self._repeat(number, begun[number]))
            for number in range(NUM_STREAMS)
        ]
        for one in begun:
            await one.wait()
        return tasks

    async def stop(self, tasks: list["asyncio.Task[None]"]) -> Report:
        """Returns what was seen when the streams that run have ended."""
        self._stopping.set()
        await asyncio.gather(*tasks)
        return self._report

    async def _repeat(self, number: int, begun: asyncio.Event) -> None:
        while not self._stopping.is_set():
            try:
                said = await self._listen(number, begun)
            except (grpc.aio.AioRpcError, httpx2.HTTPError, OSError) as error:
                self._report.wrong.append(f"stream {number}: {error!r}"[:500])
                await asyncio.sleep(RETRY_S)
                continue
            finally:
                begun.set()
            if said == self._alone[number]:
                self._report.num_whole += 1
            else:
                self._report.wrong.append(f"stream {number}: {said[:200]!r}")

    async def _listen(self, number: int, begun: asyncio.Event) -> str:
        said, last = "", math.inf
        async for piece in self._pieces(number):
            begun.set()
            now = time.monotonic()
            self._report.longest_gap_s = max(self._report.longest_gap_s, now - last)
            said, last = said + piece, now
        return said

    def _pieces(self, number: int) -> AsyncIterator[str]:
        return self._over_http(number) if number % 2 else self._over_grpc(number)

    async def _over_grpc(self, number: int) -> AsyncIterator[str]:
        request = pb.GenerateRequest(
            text=_prompt(number),
            sampling_params=pb.SamplingParams(
                temperature=1, seed=number, max_tokens=NUM_TOKENS, ignore_eos=True
            ),
        )
        async for answer in self._stub.Generate(request):
            for output in answer.outputs:
                yield output.text

    async def _over_http(self, number: int) -> AsyncIterator[str]:
        body = {
            "prompt": _prompt(number), "temperature": 1, "seed": number, "stream": True,
            "max_tokens": NUM_TOKENS, "ignore_eos": True,
        }  # fmt: skip
        async with self._http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                raise OSError((await answer.aread()).decode())
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data and data != "[DONE]":
                    yield _text(json.loads(data))


def _text(chunk: dict[str, object]) -> str:
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        raise OSError(f"the stream ended with {chunk}")
    return "".join(str(choice["text"]) for choice in choices)


def _prompt(number: int) -> str:
    return f"The healthy stream number {number}"


async def _serve(grpc_address: str, http_url: str, alone: str) -> None:
    async with (
        grpc.aio.insecure_channel(grpc_address) as channel,
        httpx2.AsyncClient(base_url=http_url, timeout=READ_S) as http,
    ):
        streams = Streams(channel, http, alone=json.loads(alone))
        print(json.dumps(await streams.learn()), flush=True)
        while await asyncio.to_thread(sys.stdin.readline) == "start\n":
            tasks = await streams.start()
            print("streaming", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            print(json.dumps(dataclasses.asdict(await streams.stop(tasks))), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
