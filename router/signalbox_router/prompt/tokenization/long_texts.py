"""Tokenises long texts in other processes (`tokenizer_process`), a few at a time.

A long text would take too much of the router's memory, and could not be cancelled. A process is
kept for the next text unless it was killed: because it took too much, or because its client has
left. Texts take turns by payer (`fair_slots`).
"""

import asyncio
import contextlib
import subprocess
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from signalbox_contract.errors import InvalidArgument
from signalbox_router.limits.fair_slots import FairSlots
from signalbox_router.limits.payers import Payer
from signalbox_router.prompt.tokenization import tokenizer_process
from signalbox_rpc.lifetime.limited_program import command

MAX_PROCESSES = 3
"""Long texts that are tokenised at once; one payer gets one fewer."""
MAX_KEPT = 1
"""Idle processes that are kept. Each has the tokenizers in memory, up to 200 MB."""
HEAVY_BYTES = 1 << 20
"""Bytes above which a text counts as two. So only one of the texts that take up to 700 MB is
processed at a time, and its process ends with it."""
CPU_S = 5.0
CPU_S_PER_MIB = 5.0
"""CPU seconds of a text by its size: ten times the need of byte-level tokenizers."""
MEMORY_BYTES = 512 << 20
MEMORY_BYTES_PER_BYTE = 400
"""Memory of a text by its size: twice the need of byte-level tokenizers with the tokens' places."""
MAX_DECODED_BYTES = 64 << 20
"""Bytes of decoded text: four times the text of the longest windows. One token may stand for 128
spaces, so that without a bound 4 MiB of tokens would be answered by 180 MB."""
TRIM_AFTER_S = 2.0
"""Seconds after a long text, in which its answer is written, until unused memory is released."""
_PIECE = 1 << 16
"""Numbers that are converted before other threads may run."""

T = TypeVar("T")


class Encoded(NamedTuple):
    """Tokens of a text."""

    ids: list[int]
    places: list[tuple[int, int, int]]
    """Id, start and end in the text of the tokens whose places were requested."""


class TextProcess:
    """One process; its methods block."""

    def __init__(self, tokenizers: Sequence[bytes]) -> None:
        """Starts the process; each tokenizer, the content of a tokenizer.json, is loaded at
        first use."""
        self._process = subprocess.Popen(
            command(tokenizer_process.__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"TOKENIZERS_PARALLELISM": "false"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._unsent = list(tokenizers)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kills the process and waits for its end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):  # for bytes that were not written
                stream.close()

    def kill(self) -> None:
        """Kills the process; a call that waits for its answer raises InvalidArgument."""
        self._process.kill()

    def encode(
        self,
        text: str,
        *,
        tokenizer: int = 0,
        add_special_tokens: bool,
        last: int | None = None,
        places: Iterable[int] = (),
        field: str = "text",
    ) -> Encoded:
        """Returns all token ids, or the `last` ones. Raises InvalidArgument."""
        job = {
            "kind": "encode",
            "tokenizer": tokenizer,
            "add_special_tokens": add_special_tokens,
            "last": last,
            "places": list(places),
        }
        header, content = self._ask(job, text.encode(), field)
        return Encoded(_numbers(content), [tuple(one) for one in header["places"]])

    def starts(
        self, text: str, *, add_special_tokens: bool, last: int | None, field: str = "text"
    ) -> list[int]:
        """Returns the places in the text where the `last` tokens begin. Raises InvalidArgument."""
        job = {
            "kind": "starts",
            "tokenizer": 0,
            "add_special_tokens": add_special_tokens,
            "last": last,
            "places": True,
        }
        return _numbers(self._ask(job, text.encode(), field)[1])

    def decode(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool, field: str = "token_ids"
    ) -> str:
        """Returns the text of tokens. Raises InvalidArgument."""
        job = {
            "kind": "decode",
            "tokenizer": 0,
            "skip_special_tokens": skip_special_tokens,
            "most_bytes": MAX_DECODED_BYTES,
        }
        packed = array("I")
        for start in range(0, len(token_ids), _PIECE):
            packed.extend(token_ids[start : start + _PIECE])
        header, content = self._ask(job, packed.tobytes(), field)
        if header["text_bytes"] > MAX_DECODED_BYTES:
            length, allowed = f"{len(token_ids)} tokens", f"{MAX_DECODED_BYTES >> 20} MiB of text"
            raise InvalidArgument(field, length, f"at most {allowed}")
        return content.decode()

    def _ask(self, job: dict[str, Any], content: bytes, field: str) -> tuple[dict[str, Any], bytes]:
        cpu_s = CPU_S + CPU_S_PER_MIB * len(content) / (1 << 20)
        memory_bytes = MEMORY_BYTES + MEMORY_BYTES_PER_BYTE * len(content)
        limits = {"cpu_s": cpu_s, "memory_bytes": memory_bytes}
        try:
            while self._unsent:
                tokenizer_process.write_frame(self._stdin, {"kind": "load"}, self._unsent.pop(0))
            tokenizer_process.write_frame(self._stdin, {**job, **limits}, content)
            return tokenizer_process.read_frame(self._stdout)
        except (EOFError, OSError):
            allowed = f"what takes {cpu_s:.0f} s of CPU time and {memory_bytes >> 20} MiB at most"
            raise InvalidArgument(field, f"{len(content)} bytes", allowed) from None


class LongTexts:
    """The processes for one model's tokenizers."""

    def __init__(self, tokenizers: Sequence[bytes]) -> None:
        self._tokenizers = tokenizers
        self._slots = FairSlots(MAX_PROCESSES)
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, thread_name_prefix="long texts")
        self._idle: list[TextProcess] = []
        self._is_closed = False

    async def run(self, call: Callable[[TextProcess], T], *, num_bytes: int = 0, payer: Payer) -> T:
        """Runs `call` with a process on a thread and returns its result. Cancelling kills the
        process.

        Args:
            num_bytes: approximate bytes that the call sends to the process.
        """
        is_heavy = num_bytes > HEAVY_BYTES
        async with self._slots.slot(payer, weight=2 if is_heavy else 1):
            loop = asyncio.get_running_loop()
            process = self._idle.pop() if self._idle else None
            if process is None or not process.is_running:
                process = await self._start()
            try:
                answer = await loop.run_in_executor(self._threads, call, process)
            except BaseException:
                process.kill()
                self._threads.submit(process.end)
                raise
            self._put_back(process, is_used_up=is_heavy)
            loop.call_later(TRIM_AFTER_S, self._threads.submit, tokenizer_process.give_memory_back)
            return answer

    async def _start(self) -> TextProcess:
        starting = self._threads.submit(TextProcess, self._tokenizers)
        try:
            return await asyncio.shield(asyncio.wrap_future(starting))
        except asyncio.CancelledError:  # the process will start although no call needs it
            self._threads.submit(lambda: starting.result().end())
            raise

    def _put_back(self, process: TextProcess, *, is_used_up: bool) -> None:
        if self._is_closed or is_used_up or len(self._idle) >= MAX_KEPT:
            self._threads.submit(process.end)
        else:
            self._idle.append(process)

    def close(self) -> None:
        """Ends the idle processes; busy ones end with their texts."""
        self._is_closed = True
        while self._idle:
            self._threads.submit(self._idle.pop().end)


def _numbers(content: bytes) -> list[int]:
    packed = memoryview(content).cast("I")
    numbers: list[int] = []
    for start in range(0, len(packed), _PIECE):
        numbers += packed[start : start + _PIECE]
    return numbers
