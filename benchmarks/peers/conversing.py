"""Servers that take turns of conversations: token ids in and out, and what their caches held.

All have the same memory for KV, and as much context as the longest conversation takes.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.peers.llama_server import LlamaServer
from benchmarks.peers.signalbox_server import SignalboxServer
from benchmarks.peers.vllm_server import COMPLETIONS, VllmHttpServer, completion, num_cached_of
from signalbox.bench.http_stream import post, post_for_events
from signalbox_protos.inference.v1 import inference_pb2 as pb


class Answer(NamedTuple):
    """An answer to a turn; the times include what a client has to do beside the request."""

    token_ids: list[int]
    first_token_s: float
    whole_s: float
    num_cached: int
    """Tokens of the prompt that were not computed."""


class Conversing(Protocol):
    """A server process that takes turns of numbered conversations."""

    name: str
    files: Path | None
    """Folder in which it keeps KV blocks, or None."""

    async def start(self) -> None: ...

    async def answer(
        self, conversation: int, token_ids: list[int], *, max_tokens: int
    ) -> Answer: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Settings that all servers share."""

    memory_bytes: int
    """Memory for KV, on the device and beside it."""
    token_bytes: int
    """K and V of a token, in 16 bits an element."""
    max_model_len: int
    num_threads: int
    log_folder: Path


@dataclass(slots=True)
class _Reading:
    """What has come of an answer; made when its turn begins."""

    began: float = field(default_factory=time.perf_counter)
    token_ids: list[int] = field(default_factory=list)
    first_at: float = 0.0
    num_cached: int = 0

    def take(self, token_ids: list[int]) -> None:
        if token_ids and not self.token_ids:
            self.first_at = time.perf_counter()
        self.token_ids += token_ids

    def end(self) -> Answer:
        now = time.perf_counter()
        return Answer(self.token_ids, self.first_at - self.began, now - self.began, self.num_cached)


class SignalboxConversing(SignalboxServer):
    """Ourselves; half of the memory is the swap space, through which blocks come from a disk."""

    def __init__(
        self, model: Path, room: Room, *, flags: Sequence[str], files: Path | None = None
    ) -> None:
        half = str(room.memory_bytes / 2 / (1 << 30))
        memory = ["--kv-cache-memory", half, "--swap-space", half]
        length = ["--max-model-len", str(room.max_model_len)]
        disk = ["--kv-disk", str(files)] if files else []
        super().__init__(
            model,
            log_folder=room.log_folder,
            extra_arguments=[*memory, *length, *disk, *flags],
            label="disk" if files else "",
        )
        self.files = files

    async def answer(self, conversation: int, token_ids: list[int], *, max_tokens: int) -> Answer:
        params = pb.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=token_ids), sampling_params=params)
        reading = _Reading()
        async for response in self.stub().Generate(request):
            reading.take([one for output in response.outputs for one in output.token_ids])
            if response.HasField("usage"):
                reading.num_cached = response.usage.cached_tokens
        return reading.end()


class VllmConversing(VllmHttpServer):
    """vLLM with its prefix cache. On a processor with AVX2 alone it is eager, as its compiler fails
    there, and in float32, as it has no bfloat16 without AVX-512."""

    files = None

    def __init__(self, folder: Path, room: Room) -> None:
        memory = ["--kv-cache-memory-bytes", str(room.memory_bytes), "--enable-prefix-caching"]
        length = ["--max-model-len", str(room.max_model_len)]
        has_avx512 = "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
        lesser = [] if has_avx512 else ["--enforce-eager", "--dtype", "float32"]
        super().__init__(
            folder,
            num_threads=room.num_threads,
            log_folder=room.log_folder,
            extra_arguments=[*memory, *length, *lesser],
            label="" if has_avx512 else "float32",
        )

    def environment(self) -> dict[str, str]:
        variables = super().environment()
        del variables["VLLM_CPU_KVCACHE_SPACE"]  # whole GiB, which would override the bytes
        return variables

    async def answer(self, conversation: int, token_ids: list[int], *, max_tokens: int) -> Answer:
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        body = completion(token_ids, max_tokens) | asked | {"return_token_ids": True}
        reading = _Reading()
        async for event in post_for_events(self.endpoint, COMPLETIONS, body):
            for choice in event["choices"]:
                reading.take(choice.get("token_ids") or [])
            if usage := event.get("usage"):
                reading.num_cached = num_cached_of(usage)
        return reading.end()


class LlamaConversing(LlamaServer):
    """llama-server: all memory for slots, which are saved to files and restored at each turn.

    Without files one slot, and the rest of the memory for its own cache of prompts.
    """

    def __init__(self, folder: Path, room: Room, *, files: Path | None = None) -> None:
        slot_tokens = room.max_model_len + 1  # it leaves one free
        slot_bytes = slot_tokens * room.token_bytes
        self.num_slots = max(1, room.memory_bytes // slot_bytes) if files else 1
        context = ["--ctx-size", str(self.num_slots * slot_tokens)]
        rest = max(0, room.memory_bytes - self.num_slots * slot_bytes)
        cache = ["--cache-ram", str(rest >> 20)]
        slots = ["--slot-save-path", str(files), "--cache-ram", "0"] if files else cache
        super().__init__(
            folder,
            num_threads=room.num_threads,
            log_folder=room.log_folder,
            extra_arguments=["--parallel", str(self.num_slots), *context, *slots],
            label="slot files" if files else "prompt cache",
        )
        self.files = files
        self._saved = set[int]()

    async def answer(self, conversation: int, token_ids: list[int], *, max_tokens: int) -> Answer:
        slot = conversation % self.num_slots
        reading = _Reading()
        if conversation in self._saved:
            await self._move(slot, conversation, "restore")
        # Its stream leaves out the tokens of a character before the last one.
        body = self.body(token_ids, max_tokens=max_tokens) | {"id_slot": slot}
        answer = await post(self.endpoint, "/completion", body)
        reading.take(answer["tokens"])
        reading.first_at -= answer["timings"]["predicted_ms"] / 1e3
        reading.num_cached = answer["timings"]["cache_n"]
        if self.files:
            await self._move(slot, conversation, "save")
            self._saved.add(conversation)
        return reading.end()

    async def _move(self, slot: int, conversation: int, action: str) -> None:
        path = f"/slots/{slot}?action={action}"
        await post(self.endpoint, path, {"filename": f"{conversation}.slot"})
