"""A small tokenizer, and a scheduler that does what a test tells it to."""

import asyncio
import functools
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from signalbox_contract.columns import pack_int32, pack_int64
from signalbox_contract.errors import AlreadyExists, FailedPrecondition, NotFound, RpcError
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc, stats_pb2
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_rpc.interceptors.status import to_status
from tests.waiting import EVENT_S

BOS, EOS, IM_START, IM_END = "<s>", "</s>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MODEL_NAME = "tiny"
MAX_MODEL_LEN = 128
"""For what takes milliseconds on an idle machine."""
POOL = ThreadPoolExecutor(1)


@functools.cache
def make_backend() -> Any:
    """Returns a byte-level BPE tokenizer that adds a beginning-of-sequence token."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BOS, EOS, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "The capital of France is Paris. Die Hauptstadt heißt 東京 nicht 北京 😀😀 naïve café. "
    backend.train_from_iterator([text] * 4, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, backend.token_to_id(BOS))]
    )
    return backend


def make_files(**settings: object) -> dict[str, bytes]:
    settings = {"bos_token": BOS, "eos_token": EOS, "chat_template": CHATML} | settings
    return {
        "tokenizer.json": make_backend().to_str().encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }


def make_tokenizer(**settings: object) -> Tokenizer:
    size = make_backend().get_vocab_size()
    return Tokenizer(make_files(**settings), vocab_size=size, pool=POOL)


def make_model(**changes: Any) -> ServedModel:
    fields: dict[str, Any] = {
        "name": MODEL_NAME,
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "vocab_size": make_backend().get_vocab_size(),
        "max_model_len": MAX_MODEL_LEN,
        "eos_token_ids": (token(EOS),),
        "tokenizer": make_tokenizer(),
    }
    return ServedModel(**fields | changes)


def token(text: str) -> int:
    """Returns the id of one token."""
    token_id = make_backend().token_to_id(text)
    assert token_id is not None
    return int(token_id)


def ids_of(text: str) -> list[int]:
    ids: list[int] = make_backend().encode(text, add_special_tokens=False).ids
    return ids


def bytewise_ids(text: str) -> list[int]:
    """Returns one token for each byte of the text."""
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    stand_ins = "".join(piece for piece, _ in alphabet.pre_tokenize_str(text))
    return [token(char) for char in stand_ins]


Run = tuple[int, int, Sequence[int]]
"""Handle, index, tokens."""


def step(
    *runs: Run,
    sequences: Iterable[pb.FinishedSequence] = (),
    requests: Iterable[pb.FinishedRequest] = (),
    logprobs: Iterable[common_pb2.TokenLogprobs] = (),
) -> pb.RequestUpdates:
    return pb.RequestUpdates(
        handles=pack_int64([handle for handle, _, _ in runs]),
        indices=pack_int32([index for _, index, _ in runs]),
        num_tokens=pack_int32([len(ids) for _, _, ids in runs]),
        token_ids=pack_int32([token_id for _, _, ids in runs for token_id in ids]),
        logprobs=logprobs,
        finished_sequences=sequences,
        finished_requests=requests,
    )


def finished(
    handle: int,
    reason: int = pb.FINISH_REASON_LENGTH,
    *,
    num_sequences: int = 1,
    **fields: Any,
) -> dict[str, Any]:
    """Returns the ends of a request and of its sequences, as `step` takes them."""
    ends = [
        pb.FinishedSequence(handle=handle, index=index, reason=reason, **fields)  # type: ignore[arg-type]
        for index in range(num_sequences)
    ]
    return {"sequences": ends, "requests": [request_finished(handle)]}


def request_finished(handle: int, **fields: Any) -> pb.FinishedRequest:
    usage = pb.Usage(prompt_tokens=7, completion_tokens=1000, cached_tokens=3)
    timings = pb.Timings(queued_ns=1, prefill_ns=2, decode_ns=3_000_000_004, preempted_ns=5)
    given: dict[str, Any] = {"usage": usage, "timings": timings, **fields}
    return pb.FinishedRequest(handle=handle, **given)


Script = Callable[[pb.Request], Iterable[pb.RequestUpdates]]


async def refuse(context: Any, error: RpcError) -> None:
    """Ends a call as a service does, with the error's details."""
    await context.abort_with_status(to_status(error))


class FakeScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Records what routers send; answers each request with the steps that `script` makes of it."""

    def __init__(self, script: Script = lambda add: (), *, port: int = 0) -> None:
        """`port` is a `free_port()` of a scheduler that is started again, or else 0."""
        self.script = script
        self.has_worker = True
        self.model_name = MODEL_NAME
        self.max_model_len = MAX_MODEL_LEN
        self.effective_max_model_len = 0
        self.sampling_defaults = common_pb2.SamplingDefaults()
        self.pooling: common_pb2.PoolingModel | None = None
        self.adapters: list[common_pb2.Adapter] = []
        self.started_as: list[str] = []
        self.adapter_fault = ""
        self.adapter_folders: list[str] = []
        """Names of the adapters that load at first use."""
        self.adapter_gate: asyncio.Event | None = None
        """What loads wait for."""
        self.asked: list[pb.LoadAdapterRequest | pb.UnloadAdapterRequest] = []
        """What routers have asked of adapters."""
        self.files = make_files()
        self.added: list[pb.Request] = []
        self.aborted: list[int] = []
        self.stopped: list[tuple[int, int, int]] = []
        self.paused: list[pb.SessionPause] = []
        self.request_of_a_stop_ends = True
        self.num_tokenizer_calls = 0
        self.num_model_calls = 0
        self.num_stats_calls = 0
        self.num_streams = 0
        self.stats = stats_pb2.GetStatsResponse()
        self.port = port
        self._changed = asyncio.Condition()
        self._outgoing: asyncio.Queue[pb.ConnectResponse | None] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        # As a scheduler's own server: a router's keepalive pings are not abuse.
        options = [("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)]
        self._server = grpc.aio.server(options=options)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def send(self, outputs: pb.RequestUpdates) -> None:
        self._outgoing.put_nowait(pb.ConnectResponse(updates=outputs))

    def say_model_changed(self) -> None:
        self._outgoing.put_nowait(pb.ConnectResponse(model_changed=True))

    def beat(self, *, interval_s: float) -> None:
        interval_ns = int(interval_s * 1e9)
        self._outgoing.put_nowait(pb.ConnectResponse(heartbeat_interval_ns=interval_ns))

    def end_stream(self) -> None:
        self._outgoing.put_nowait(None)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(EVENT_S), self._changed:
            await self._changed.wait_for(condition)

    async def Connect(
        self, requests: AsyncIterator[pb.ConnectRequest], context: Any
    ) -> AsyncIterator[pb.ConnectResponse]:
        reading = asyncio.create_task(self._read(requests))
        self.num_streams += 1
        try:
            while (answer := await self._outgoing.get()) is not None:
                yield answer
        finally:
            reading.cancel()
            self._outgoing = asyncio.Queue()  # what is sent before a stream is for the next one

    async def _read(self, requests: AsyncIterator[pb.ConnectRequest]) -> None:
        async for request in requests:
            async with self._changed:
                self._apply(request)
                self._changed.notify_all()

    def _apply(self, request: pb.ConnectRequest) -> None:
        self.paused += request.session_pauses
        match request.WhichOneof("message"):
            case "add_request":
                self.added.append(request.add_request)
                for outputs in self.script(request.add_request):
                    self.send(outputs)
            case "abort_request":
                self.aborted.append(request.abort_request.handle)
            case "stop_sequence":
                stop = request.stop_sequence
                self.stopped.append((stop.handle, stop.index, stop.keep_tokens))
                if self.request_of_a_stop_ends:
                    self.send(step(requests=[request_finished(stop.handle)]))

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        self.num_model_calls += 1
        if not self.has_worker:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no worker")
        info = common_pb2.ModelInfo(
            name=self.model_name,
            architecture="LlamaForCausalLM",
            dtype="float32",
            vocab_size=make_backend().get_vocab_size(),
            max_model_len=self.max_model_len,
            eos_token_ids=[token(EOS)],
            tokenizer_sha256=hashlib.sha256(repr(self.files).encode()).hexdigest(),
            sampling_defaults=self.sampling_defaults,
            adapters=self.adapters,
            pooling=self.pooling,
            started_as=self.started_as,
        )
        return pb.GetModelResponse(model=info, effective_max_model_len=self.effective_max_model_len)

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: Any
    ) -> pb.LoadAdapterResponse:
        self.asked.append(request)
        if self.adapter_gate is not None:
            await self.adapter_gate.wait()
        if self.adapter_fault:
            await refuse(context, FailedPrecondition(self.adapter_fault))
        if request.at_first_use and request.name not in self.adapter_folders:
            await refuse(context, NotFound("no such folder"))
        if not request.replace and any(one.name == request.name for one in self.adapters):
            await refuse(context, AlreadyExists(f"{request.name} is loaded"))
        adapter = common_pb2.Adapter(name=request.name, sha256="a1" * 32, path=request.path)
        self.adapters = [one for one in self.adapters if one.name != request.name] + [adapter]
        self.say_model_changed()
        return pb.LoadAdapterResponse(adapter=adapter)

    async def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: Any
    ) -> pb.UnloadAdapterResponse:
        self.asked.append(request)
        if all(one.name != request.name for one in self.adapters):
            await refuse(context, NotFound("no such adapter"))
        self.adapters = [one for one in self.adapters if one.name != request.name]
        self.say_model_changed()
        return pb.UnloadAdapterResponse()

    async def GetStats(
        self, request: stats_pb2.GetStatsRequest, context: Any
    ) -> stats_pb2.GetStatsResponse:
        self.num_stats_calls += 1
        return self.stats

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        self.num_tokenizer_calls += 1
        for name, content in sorted(self.files.items()):
            for start in range(0, len(content), 10_000):
                chunk = content[start : start + 10_000]
                yield pb.GetTokenizerResponse(file_name=name, chunk=chunk)
