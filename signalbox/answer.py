"""An answer as it streams to the terminal: text on standard output, figures on standard error."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from signalbox.inference_client import Chunk, InferenceClient, Usage

PATIENCE_S = 2.0
"""Whoever waits longer is told what for."""


@dataclass(slots=True)
class Answer:
    """What has come of one request, and when."""

    started: float = field(default_factory=time.monotonic)
    texts: dict[int, str] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    usage: Usage | None = None
    request_id: str = ""
    first: float | None = None
    last: float = 0.0

    def add(self, chunk: Chunk) -> None:
        """Takes in one message of the stream."""
        self.request_id = chunk.request_id
        self.usage = chunk.usage or self.usage
        if any(delta.num_tokens for delta in chunk.deltas):
            self.last = time.monotonic()
            self.first = self.first or self.last
        for delta in chunk.deltas:
            self.texts[delta.index] = self.texts.get(delta.index, "") + delta.text
            if delta.finish_reason:
                self.finish_reasons[delta.index] = delta.finish_reason

    def summary(self) -> str:
        """Returns how many tokens came how fast, for people."""
        parts = [f"{self.num_tokens} tokens"]
        if self.time_to_first_token_s is not None:
            parts.append(f"first after {self.time_to_first_token_s:.3f} s")
        if self.tokens_per_second is not None:
            parts.append(f"then {self.tokens_per_second:.1f} tokens/s")
        parts.append(f"request {self.request_id}")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Returns everything, for programs."""
        return {
            "request_id": self.request_id,
            "outputs": [
                {"index": index, "text": text, "finish_reason": self.finish_reasons.get(index)}
                for index, text in sorted(self.texts.items())
            ],
            "usage": asdict(self.usage) if self.usage else None,
            "time_to_first_token_s": self.time_to_first_token_s,
            "tokens_per_second": self.tokens_per_second,
        }

    @property
    def num_tokens(self) -> int:
        return self.usage.completion_tokens if self.usage else 0

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self.first is None else self.first - self.started

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token; None if there was only one."""
        if self.first is None or self.last <= self.first:
            return None
        return (self.num_tokens - 1) / (self.last - self.first)


async def show(chunks: AsyncIterator[Chunk], *, client: InferenceClient, as_json: bool) -> Answer:
    """Prints an answer as it streams, then its summary. Raises RuntimeError if the call fails."""
    answer = Answer()
    try:
        async for chunk in _with_patience(chunks):
            answer.add(chunk)
            if not as_json:
                _print_deltas(chunk)
    except grpc.aio.AioRpcError as error:
        raise RuntimeError(explain(error, client.address)) from error
    if as_json:
        print(json.dumps(answer.as_dict(), ensure_ascii=False))
        return answer
    _print_others(answer)
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(answer.summary(), "dim"))
    return answer


async def _with_patience(chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """Passes the chunks on; says on a terminal that it waits if the first takes long."""
    console = Console(stderr=True)
    waiting = asyncio.create_task(_say_waiting(console)) if console.is_terminal else None
    try:
        async for chunk in chunks:
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                waiting = None
            yield chunk
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _say_waiting(console: Console) -> None:
    await asyncio.sleep(PATIENCE_S)
    with console.status("waiting for the first token"), contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


def _print_deltas(chunk: Chunk) -> None:
    for delta in chunk.deltas:
        if delta.index == 0:
            print(delta.text, end="", flush=True)


def _print_others(answer: Answer) -> None:
    """Prints all but the first, which has streamed: as panels for people, as lines for scripts."""
    print(flush=True)
    console = Console(highlight=False)
    for index, text in sorted(answer.texts.items()):
        if index and console.is_terminal:
            console.print(Panel(Text(text), title=f"answer {index}", title_align="left"))
        elif index:
            print(f"[{index}] {text}", file=sys.stdout)


def explain(error: grpc.aio.AioRpcError, address: str) -> str:
    """Returns why a call failed, in one line."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNAVAILABLE and "connect" in details:
        return f"nothing answers at {address}; is `signalbox serve` running?"
    return f"{error.code().name}: {details}"
