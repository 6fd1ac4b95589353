"""Prints an answer as it streams: text on standard output, figures on standard error."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from signalbox.client.service_client import NO_METHOD
from signalbox.client.tls_probe import listens, speaks_http, tls_hint
from signalbox.settings.environment import ENV_PREFIX
from signalbox_client import Answer, AsyncStream, Chunk, RequestError
from signalbox_contract.wording import counted

PATIENCE_S = 2.0
"""Seconds without a token after which a terminal shows that the command waits."""


@dataclass(slots=True)
class TimedAnswer:
    """The output of one request so far, and its times."""

    answer: Answer
    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    num_first: int = 0
    """Tokens that came at `first`: more than one if the command was slower than the server."""
    last: float = 0.0

    def record(self, chunk: Chunk) -> None:
        """Records the time of a chunk with tokens."""
        if num_tokens := sum(len(delta.token_ids) for delta in chunk.deltas):
            self.last = time.monotonic()
            if self.first is None:
                self.first, self.num_first = self.last, num_tokens

    def summary(self) -> str:
        """Returns the number of tokens and their speed, for people."""
        parts = [counted(self.num_tokens, "token")]
        if self.time_to_first_token_s is not None:
            parts.append(f"first after {self.time_to_first_token_s:.3f} s")
        if self.tokens_per_second is not None:
            parts.append(f"then {self.tokens_per_second:.1f} tokens/s")
        parts.append(f"request {self.answer.request_id}")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields, for programs."""
        return {
            "request_id": self.answer.request_id,
            "outputs": [
                {
                    "index": index,
                    "text": output.text,
                    **({"reasoning": output.reasoning} if output.reasoning else {}),
                    "finish_reason": output.finish_reason,
                }
                for index, output in enumerate(self.answer.outputs)
            ],
            "usage": asdict(self.answer.usage) if self.answer.usage else None,
            "time_to_first_token_s": self.time_to_first_token_s,
            "tokens_per_second": self.tokens_per_second,
        }

    @property
    def num_tokens(self) -> int:
        return self.answer.usage.completion_tokens if self.answer.usage else 0

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self.first is None else self.first - self.started

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second after the first ones; None if there were no others."""
        if self.first is None or self.last <= self.first:
            return None
        return (self.num_tokens - self.num_first) / (self.last - self.first)


async def show(stream: AsyncStream, *, address: str, as_json: bool) -> TimedAnswer:
    """Prints an answer as it streams, then its summary. Raises RuntimeError if the call fails."""
    timed = TimedAnswer(stream.answer)
    with explained(address):
        async with stream:
            async for chunk in _with_patience(stream.chunks()):
                timed.record(chunk)
                if not as_json:
                    _print_reasoning(timed.answer, chunk)
                    print(chunk.text, end="", flush=True)
    if as_json:
        print(json.dumps(timed.as_dict(), ensure_ascii=False))
        return timed
    _print_others(timed.answer)
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(timed.summary(), "dim"))
    return timed


def _print_reasoning(answer: Answer, chunk: Chunk) -> None:
    """Prints the reasoning on standard error, so that a pipe receives only the answer."""
    if not answer.reasoning:
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(chunk.reasoning, "dim italic"), end="")
    if chunk.text and chunk.text == answer.text:  # the answer begins
        console.print("\n")


async def _with_patience(chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """Passes the chunks on; shows on a terminal that the first one takes long."""
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


def _print_others(answer: Answer) -> None:
    """Prints all outputs but the first, which has streamed: panels for people, lines for
    scripts."""
    print(flush=True)
    console = Console(highlight=False)
    for index, output in enumerate(answer.outputs[1:], start=1):
        if console.is_terminal:
            console.print(Panel(Text(output.text), title=f"answer {index}", title_align="left"))
        else:
            print(f"[{index}] {output.text}", file=sys.stdout)


@contextlib.contextmanager
def explained(address: str) -> Iterator[None]:
    """Turns a failed call into RuntimeError with the reason in one line."""
    try:
        yield
    except RequestError as error:
        if error.code is grpc.StatusCode.UNAVAILABLE and "connect" in error.message:
            uses_tls = "WRONG_VERSION_NUMBER" in error.message  # the answer is not of TLS
            if hint := tls_hint(address, uses_tls=uses_tls):
                raise RuntimeError(f"no router answers at {address}{hint}") from error
            if speaks_http(address):
                raise RuntimeError(
                    f"what listens at {address} does not answer gRPC calls; --router takes the"
                    " router's gRPC port, not its HTTP port"
                ) from error
            if listens(address):
                raise RuntimeError(
                    f"the router at {address} takes no calls now; it may be starting, busy, or"
                    " ending"
                ) from error
            raise RuntimeError(
                f"nothing answers at {address}; start a server with `signalbox serve MODEL`, or"
                " serve and chat in one command with `signalbox run MODEL`"
            ) from error
        if error.code is grpc.StatusCode.UNIMPLEMENTED and error.message == NO_METHOD:
            raise RuntimeError(f"{address} is no router of this version") from error
        if error.code is grpc.StatusCode.UNAUTHENTICATED:
            raise RuntimeError(f"{error}; set --api-key or {ENV_PREFIX}API_KEY") from error
        raise RuntimeError(str(error)) from error
