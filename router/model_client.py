"""Learns from schedulers which model is served, and fetches its tokenizer, once for all of them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from router.model import ServedModel
from router.tokenizer import Tokenizer
from rpc import sampling_codec

UNARY_TIMEOUT_S = 5.0
TOKENIZER_TIMEOUT_S = 60.0
MAX_TOKENIZER_BYTES = 256 << 20


class ModelClient:
    """Keeps the last tokenizer, so that asking again costs one small call."""

    def __init__(
        self,
        *,
        tokenizer_threads: int,
        chat_template: str | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        """`names` are those that requests may use beside the model's own."""
        self._chat_template = chat_template
        self._names = names
        self._pool = ThreadPoolExecutor(tokenizer_threads, thread_name_prefix="tokenizer")
        self._key: tuple[str, int] | None = None
        self._tokenizer: Tokenizer | None = None
        self._fetching = asyncio.Lock()

    async def fetch(self, stub: scheduler_pb2_grpc.SchedulerServiceStub) -> ServedModel:
        """Raises AioRpcError, or ValueError if the tokenizer cannot be used."""
        answer = await stub.GetModel(pb.GetModelRequest(), timeout=UNARY_TIMEOUT_S)
        info = answer.model
        key = (info.tokenizer_sha256, info.vocab_size)
        async with self._fetching:
            if self._tokenizer is None or key != self._key:
                self._tokenizer = await self._fetch_tokenizer(stub, info.vocab_size)
                self._key = key
            return _served_model(answer, self._tokenizer, self._names)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _fetch_tokenizer(
        self, stub: scheduler_pb2_grpc.SchedulerServiceStub, vocab_size: int
    ) -> Tokenizer:
        files = await _fetch_files(stub)

        def load() -> Tokenizer:
            return Tokenizer.from_files(
                files,
                vocab_size=vocab_size,
                pool=self._pool,
                chat_template=self._chat_template,
            )

        return await asyncio.get_running_loop().run_in_executor(self._pool, load)


async def _fetch_files(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> dict[str, bytes]:
    files: dict[str, bytearray] = {}
    num_bytes = 0
    call = stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TOKENIZER_TIMEOUT_S)
    try:
        async for piece in call:
            files.setdefault(piece.file_name, bytearray()).extend(piece.chunk)
            num_bytes += len(piece.chunk)
            if num_bytes > MAX_TOKENIZER_BYTES:
                raise ValueError(f"its tokenizer has over {MAX_TOKENIZER_BYTES} bytes")
    finally:
        call.cancel()
    return {name: bytes(content) for name, content in files.items()}


def _served_model(
    answer: pb.GetModelResponse, tokenizer: Tokenizer, names: tuple[str, ...]
) -> ServedModel:
    info = answer.model
    return ServedModel(
        name=info.name,
        architecture=info.architecture,
        dtype=info.dtype,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        eos_token_ids=tuple(info.eos_token_ids),
        tokenizer=tokenizer,
        sampling_defaults=sampling_codec.decode_defaults(info.sampling_defaults),
        aliases=tuple(name for name in dict.fromkeys(names) if name != info.name),
        effective_max_model_len=min(answer.effective_max_model_len, info.max_model_len),
    )
