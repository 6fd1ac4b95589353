"""Streaming clients of the HTTP APIs that cost little, beside those of `stream_readers`."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.harness.paced_scheduler import MAX_MODEL_LEN, VOCAB_SIZE
from benchmarks.harness.stream_readers import PROMPT_TOKENS, Seen
from signalbox_worker.runner.loading.byte_tokenizer import MIN_VOCAB_SIZE, tokenizer_files

TEXT = "a" * PROMPT_TOKENS
CHAT = [{"role": "user", "content": TEXT}]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpApi:
    """An API: the body of a request, and where an event has its text."""

    body: Mapping[str, Any]
    limit: str
    """Field of the most tokens."""
    text: Callable[[Any], str]


def _delta(event: Any, *, kind: str, path: tuple[str, ...]) -> str:
    if event["type"] != kind:
        return ""
    for name in path:
        event = event[name]
    return str(event)


HTTP_APIS: Mapping[str, HttpApi] = {
    "/v1/completions": HttpApi(
        body={"prompt": TEXT},
        limit="max_tokens",
        text=lambda event: event["choices"][0]["text"],
    ),
    "/v1/chat/completions": HttpApi(
        body={"messages": CHAT},
        limit="max_tokens",
        text=lambda event: event["choices"][0]["delta"].get("content") or "",
    ),
    "/v1/responses": HttpApi(
        body={"input": CHAT},
        limit="max_output_tokens",
        text=partial(_delta, kind="response.output_text.delta", path=("delta",)),
    ),
    "/v1/messages": HttpApi(
        body={"messages": CHAT},
        limit="max_tokens",
        text=partial(_delta, kind="content_block_delta", path=("delta", "text")),
    ),
}


def _step_ids() -> dict[str, int]:
    """Returns the token ids of the paced scheduler's words, which have a space before them."""
    files = tokenizer_files(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
    vocabulary = json.loads(files["tokenizer.json"])["model"]["vocab"]
    return {word[1:]: i for word, i in vocabulary.items() if i >= MIN_VOCAB_SIZE}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReaders:
    """So many clients of one of the APIs, with a connection each."""

    address: str
    api: str
    num_clients: int
    max_tokens: int
    """Tokens of each request; the next one follows at once."""

    async def run(self, seen: Seen) -> None:
        """Reads until it is cancelled. Raises RuntimeError if a request is refused."""
        ids = _step_ids()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.num_clients):
                tasks.create_task(self._read(seen, ids))

    async def _read(self, seen: Seen, ids: Mapping[str, int]) -> None:
        api = HTTP_APIS[self.api]
        body = json.dumps(
            {**api.body, api.limit: self.max_tokens, "model": "paced", "stream": True}
        )
        host, _, port = self.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {self.api} HTTP/1.1\r\nHost: {self.address}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        while True:
            writer.write((head + body).encode())
            if b" 200 " not in (status := await reader.readline()):
                raise RuntimeError(status.decode() + (await reader.read(1000)).decode())
            while (line := await reader.readline()) != b"0\r\n":  # the last chunk
                if not line:
                    raise RuntimeError("the connection has ended")
                if line.startswith(b"data: {"):
                    seen.add([ids[word] for word in api.text(json.loads(line[6:])).split()])
            await reader.readline()
