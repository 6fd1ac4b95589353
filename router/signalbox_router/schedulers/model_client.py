"""Queries schedulers for their models, and fetches each tokenizer once for all of them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from signalbox_contract.description_bounds import check_description
from signalbox_contract.model import decode_model
from signalbox_contract.tokenizer_files import read_files
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc
from signalbox_router.prompt.chat.template_facts import is_for_pairs
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer

UNARY_TIMEOUT_S = 5.0
TOKENIZER_TIMEOUT_S = 60.0


class _Key(NamedTuple):
    """Identity of a tokenizer."""

    sha256: str
    vocab_size: int
    pools: bool
    """True if its model pools."""


@dataclass(slots=True)
class _Fetched:
    """A tokenizer, once it is fetched."""

    tokenizer: Tokenizer | None = None
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)

    def close(self) -> None:
        if self.tokenizer is not None:
            self.tokenizer.close()


class ModelClient:
    """Keeps the tokenizer of each scheduler's last model, so that a repeated query costs one small
    call."""

    def __init__(self, *, tokenizer_threads: int, chat_template: str | None = None) -> None:
        self._chat_template = chat_template
        self._pool = ThreadPoolExecutor(tokenizer_threads, thread_name_prefix="tokenizer")
        self._keys: dict[str, _Key] = {}
        """Tokenizer of each scheduler, by address."""
        self._fetched: dict[_Key, _Fetched] = {}

    async def fetch(
        self, address: str, stub: scheduler_pb2_grpc.SchedulerServiceStub
    ) -> ServedModel:
        """Returns the model of a scheduler. Raises AioRpcError, or ValueError for an unusable
        tokenizer."""
        answer = await stub.GetModel(pb.GetModelRequest(), timeout=UNARY_TIMEOUT_S)
        info = answer.model
        check_description(info)
        model = decode_model(info)
        model.check()
        fetched = self._use(
            address, _Key(info.tokenizer_sha256, info.vocab_size, info.HasField("pooling"))
        )
        async with fetched.fetching:
            if fetched.tokenizer is None:
                fetched.tokenizer = await self._fetch_tokenizer(stub, info)
        return ServedModel.of(
            model,
            fetched.tokenizer,
            effective_max_model_len=min(answer.effective_max_model_len, info.max_model_len),
            takes_snapshot_positions=answer.takes_snapshot_positions,
        )

    def _use(self, address: str, key: _Key) -> _Fetched:
        """Returns the entry of a scheduler's tokenizer; forgets those that no scheduler uses."""
        self._keys[address] = key
        for unused in self._fetched.keys() - {*self._keys.values()}:
            self._fetched.pop(unused).close()
        return self._fetched.setdefault(key, _Fetched())

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for fetched in self._fetched.values():
            fetched.close()

    async def _fetch_tokenizer(
        self, stub: scheduler_pb2_grpc.SchedulerServiceStub, info: common_pb2.ModelInfo
    ) -> Tokenizer:
        files = await _fetch_files(stub)
        template = self._chat_template
        if info.HasField("pooling") and template is not None and not is_for_pairs(template):
            template = None  # it is for another model of this router

        def load() -> Tokenizer:
            return Tokenizer(
                files, vocab_size=info.vocab_size, pool=self._pool, chat_template=template
            )

        return await asyncio.get_running_loop().run_in_executor(self._pool, load)


async def _fetch_files(stub: scheduler_pb2_grpc.SchedulerServiceStub) -> dict[str, bytes]:
    call = stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TOKENIZER_TIMEOUT_S)
    try:
        return await read_files(call)
    finally:
        call.cancel()
