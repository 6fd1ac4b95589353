"""Streaming clients of Connect and gRPC-Web that cost little, beside those of `event_readers`."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf import json_format

from benchmarks.harness.stream_readers import PROMPT_TOKENS, Seen
from signalbox_protos.inference.v1 import inference_pb2 as pb

PATH = "/signalbox.inference.v1.InferenceService/Generate"
ENDS = 0x82
"""Flags of what follows the messages, Connect's or gRPC-Web's."""


def _ids_in_json(data: bytes) -> Sequence[int]:
    return [one for output in json.loads(data).get("outputs", ()) for one in output["tokenIds"]]


def _ids_in_proto(data: bytes) -> Sequence[int]:
    response = pb.GenerateResponse.FromString(data)
    return [one for output in response.outputs for one in output.token_ids]


CALLS: Mapping[str, Callable[[bytes], Sequence[int]]] = {
    "connect+json": _ids_in_json,
    "connect+proto": _ids_in_proto,
    "grpc-web+proto": _ids_in_proto,
    "grpc-web-text": _ids_in_proto,
}
"""Forms of a call, by their media types below application/; each reads the tokens of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReaders:
    """So many clients of one form of a call, with a connection each."""

    address: str
    form: str
    num_clients: int
    max_tokens: int
    """Tokens of each request; the next one follows at once."""

    async def run(self, seen: Seen) -> None:
        """Reads until it is cancelled. Raises RuntimeError if a request is refused."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.num_clients):
                tasks.create_task(self._read(seen))

    def _request(self) -> bytes:
        params = pb.SamplingParams(max_tokens=self.max_tokens, ignore_eos=True)
        prompt = pb.TokenIds(ids=[1] * PROMPT_TOKENS)
        request = pb.GenerateRequest(token_ids=prompt, sampling_params=params)
        text = json_format.MessageToJson(request).encode() if self.form.endswith("json") else b""
        data = text or request.SerializeToString()
        body = b"\0" + len(data).to_bytes(4) + data
        body = base64.b64encode(body) if self.form.endswith("text") else body
        head = f"POST {PATH} HTTP/1.1\r\nHost: {self.address}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Content-Type: application/{self.form}\r\n\r\n".encode() + body

    async def _read(self, seen: Seen) -> None:
        ids_of, request = CALLS[self.form], self._request()
        host, _, port = self.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        while True:
            writer.write(request)
            status = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in status.partition(b"\r\n")[0]:
                raise RuntimeError(status.decode() + (await reader.read(1000)).decode())
            async for part in _chunks(reader):
                message = base64.b64decode(part) if self.form.endswith("text") else part
                if not message[0] & ENDS:
                    seen.add(ids_of(message[5:]))
                elif b"error" in message or b"grpc-message" in message:
                    raise RuntimeError(message[5:].decode())


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yields the chunks of a body, each of which is what the server wrote at once: a message."""
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
