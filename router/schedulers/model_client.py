"""Queries schedulers for the served model, and fetches its tokenizer once for all of them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from contract.model import decode_model
from contract.tokenizer_files import read_files
from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2_grpc
from router.served_model import ServedModel
from router.tokenization.tokenizer import Tokenizer

UNARY_TIMEOUT_S = 5.0
TOKENIZER_TIMEOUT_S = 60.0


class ModelClient:
    """Keeps the last tokenizer, so that a repeated query costs one small call."""

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
        """Returns the served model. Raises AioRpcError, or ValueError for an unusable tokenizer."""
        answer = await stub.GetModel(pb.GetModelRequest(), timeout=UNARY_TIMEOUT_S)
        info = answer.model
        key = (info.tokenizer_sha256, info.vocab_size)
        async with self._fetching:
            if self._tokenizer is None or key != self._key:
                replaced = self._tokenizer
                self._tokenizer = await self._fetch_tokenizer(stub, info.vocab_size)
                self._key = key
                if replaced is not None:
                    replaced.close()
            taken = {info.name, *(adapter.name for adapter in info.adapters)}
            return ServedModel.of(
                decode_model(info),
                self._tokenizer,
                aliases=tuple(name for name in dict.fromkeys(self._names) if name not in taken),
                effective_max_model_len=min(answer.effective_max_model_len, info.max_model_len),
            )

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._tokenizer is not None:
            self._tokenizer.close()

    async def _fetch_tokenizer(
        self, stub: scheduler_pb2_grpc.SchedulerServiceStub, vocab_size: int
    ) -> Tokenizer:
        files = await _fetch_files(stub)

        def load() -> Tokenizer:
            return Tokenizer(
                files,
                vocab_size=vocab_size,
                pool=self._pool,
                chat_template=self._chat_template,
            )

        return await asyncio.get_running_loop().run_in_executor(self._pool, load)


async def _fetch_files(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> dict[str, bytes]:
    call = stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TOKENIZER_TIMEOUT_S)
    try:
        return await read_files(call)
    finally:
        call.cancel()
