"""`signalbox generate` and `chat`: the text on standard output, a summary on standard error."""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc

from signalbox.connection import add_connection_flags, connection
from signalbox.inference_client import Chunk, InferenceClient, Message, Usage
from signalbox.settings import ENV_PREFIX

DEFAULT_ADDRESS = "127.0.0.1:50051"

_SAMPLING: dict[str, tuple[type, str]] = {
    "temperature": (float, "softmax temperature in [0, 2]; 0 is greedy"),
    "top_p": (float, "nucleus mass in (0, 1]"),
    "top_k": (int, "most likely tokens kept; 0 keeps all"),
    "min_p": (float, "least probability kept, as a fraction of the most likely token's"),
    "seed": (int, "repeats a result"),
    "max_tokens": (int, "most tokens to generate"),
    "min_tokens": (int, "tokens before which nothing ends the text"),
    "n": (int, "answers to generate"),
}


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


def add_flags(parser: argparse.ArgumentParser, *, conversation: bool) -> None:
    """Adds the flags of `chat` (a conversation) or `generate`."""
    what = "message (default: standard input, or a conversation on a terminal)"
    parser.add_argument(
        "prompt",
        metavar="MESSAGE" if conversation else "PROMPT",
        nargs="?",
        help=what if conversation else "prompt (default: standard input)",
    )
    if conversation:
        parser.add_argument("--system", metavar="TEXT", help="instructions before the message")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default=os.environ.get(ENV_PREFIX + "ADDRESS", DEFAULT_ADDRESS),
        help=f"of the router (default {DEFAULT_ADDRESS}; env {ENV_PREFIX}ADDRESS)",
    )
    add_connection_flags(parser, api_key=True)
    for name, (kind, text) in _SAMPLING.items():
        flag = "-n" if name == "n" else "--" + name.replace("_", "-")
        parser.add_argument(
            flag, dest=name, type=kind, metavar="N" if kind is int else "X", help=text
        )
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="ends the text; may be repeated"
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", default=None, help="go on after the model's end token"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="for the whole request")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run_generate(options: dict[str, Any]) -> None:
    asyncio.run(_generate(options))


def run_chat(options: dict[str, Any]) -> None:
    asyncio.run(_chat(options))


async def _generate(options: dict[str, Any]) -> None:
    prompt = options["prompt"] if options["prompt"] is not None else sys.stdin.read()
    async with InferenceClient(options["address"], connection(options)) as client:
        chunks = client.generate(prompt, **_request_options(options))
        await show(chunks, client=client, as_json=options["json"])


async def _chat(options: dict[str, Any]) -> None:
    messages = [Message(role="system", text=options["system"])] if options["system"] else []
    async with InferenceClient(options["address"], connection(options)) as client:
        for text in _turns(options["prompt"]):
            messages.append(Message(role="user", text=text))
            chunks = client.chat(messages, **_request_options(options))
            answer = await show(chunks, client=client, as_json=options["json"])
            messages.append(Message(role="assistant", text=answer.texts.get(0, "")))


def _turns(prompt: str | None) -> Any:
    """Yields the one message that was given, or what the user types until the end of input."""
    if prompt is not None or not sys.stdin.isatty():
        yield prompt if prompt is not None else sys.stdin.read()
        return
    while True:
        try:
            yield input("> ")
        except EOFError:
            return


def _request_options(options: dict[str, Any]) -> dict[str, Any]:
    names = (*_SAMPLING, "stop", "ignore_eos")
    sampling = {name: options[name] for name in names if options[name] is not None}
    return {"sampling": sampling, "timeout_s": options["timeout"]}


async def show(chunks: AsyncIterator[Chunk], *, client: InferenceClient, as_json: bool) -> Answer:
    """Prints an answer as it streams, then its summary. Raises RuntimeError if the call fails."""
    answer = Answer()
    try:
        async for chunk in chunks:
            answer.add(chunk)
            if not as_json:
                _print_deltas(chunk)
    except grpc.aio.AioRpcError as error:
        raise RuntimeError(_explain(error, client.address)) from error
    if as_json:
        print(json.dumps(answer.as_dict(), ensure_ascii=False))
        return answer
    _print_others(answer)
    print(answer.summary(), file=sys.stderr)
    return answer


def _print_deltas(chunk: Chunk) -> None:
    for delta in chunk.deltas:
        if delta.index == 0:
            print(delta.text, end="", flush=True)


def _print_others(answer: Answer) -> None:
    print(flush=True)
    for index, text in sorted(answer.texts.items()):
        if index:
            print(f"[{index}] {text}")


def _explain(error: grpc.aio.AioRpcError, address: str) -> str:
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNAVAILABLE and "connect" in details:
        return f"nothing answers at {address}; is `signalbox serve` running?"
    return f"{error.code().name}: {details}"
