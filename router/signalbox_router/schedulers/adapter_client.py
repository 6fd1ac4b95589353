"""Has the schedulers of a model load and unload LoRA adapters: all of them, or none."""

import asyncio
import logging
from typing import Any

import grpc

from signalbox_contract.errors import InvalidArgument, NotFound, RpcError, Unavailable, from_code
from signalbox_contract.model import Adapter, check_adapter_name, decode_adapter
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.scheduler_pool import Schedulers
from signalbox_router.schedulers.served_models import GENERATING
from signalbox_rpc.interceptors.status import words_of
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig

logger = logging.getLogger(__name__)

TIMEOUT_S = 120.0
KNOWN_WITHIN_S = 10.0
"""Seconds in which this router hears from the schedulers what it has had them change."""
_LOOK_INTERVAL_S = 0.01


class SchedulerAdapters:
    """Connects for each change, of which there are few."""

    def __init__(self, schedulers: Schedulers, *, tls: TlsConfig = CLEAR) -> None:
        self._schedulers, self._tls = schedulers, tls

    async def load(
        self, name: str, path: str, *, is_replacing: bool, base_model_name: str = ""
    ) -> Adapter:
        """Returns once requests to this router may name the adapter. Raises RpcError.

        An adapter that a scheduler has replaced before another one fails is not brought back.

        Args:
            base_model_name: model that gets the adapter; empty is the only one that generates.
        """
        try:
            check_adapter_name(name)
        except ValueError as error:
            raise InvalidArgument("lora_name", name, reason=str(error)) from None
        if not path:
            raise InvalidArgument("lora_path", path, "a folder below the workers' --adapter-dir")
        models = self._schedulers.models
        model = models.of(base_model_name, GENERATING)
        others = [one for one in models.all() if one != model and one.knows(name)]
        if name in model.names or others:
            raise InvalidArgument("lora_name", name, "a name that no model has")
        addresses = self._schedulers.addresses_of(model)
        request = pb.LoadAdapterRequest(name=name, path=path, replace=is_replacing)
        loaded: list[str] = []
        for address in addresses:
            try:
                answer = await self._call(address, "LoadAdapter", request)
            except RpcError:
                for done in () if is_replacing else loaded:
                    await self._take_back(done, name)
                raise
            loaded.append(address)
        adapter = decode_adapter(answer.adapter)
        await self._until_known(name, adapter)
        return adapter

    async def _take_back(self, address: str, name: str) -> None:
        try:
            await self._call(address, "UnloadAdapter", pb.UnloadAdapterRequest(name=name))
        except RpcError as error:
            logger.warning("the scheduler at %s may keep the adapter %s: %s", address, name, error)

    async def load_at_first_use(self, name: str, model: ServedModel) -> None:
        """Loads an adapter of a model whose folder has its name; returns once requests to this
        router may name it.

        A scheduler whose workers have no such folder gets no request of it. Raises NotFound if that
        is so of all of them, or another RpcError.
        """
        request = pb.LoadAdapterRequest(name=name, path=name, at_first_use=True)
        found: list[Adapter] = []
        missing = NotFound(f"no scheduler loads {name}")
        for address in self._schedulers.addresses_of(model):
            try:
                answer = await self._call(address, "LoadAdapter", request)
                found.append(decode_adapter(answer.adapter))
            except NotFound as error:
                missing = error
        if not found:
            raise missing
        await self._until_known(name, found[0])

    async def unload(self, name: str) -> None:
        """Returns once no new request to this router can name the adapter. Raises RpcError."""
        missing: NotFound | None = None
        num_missing = 0
        addresses = self._schedulers.addresses_of(self._schedulers.models.of(name))
        for address in addresses:
            try:
                await self._call(address, "UnloadAdapter", pb.UnloadAdapterRequest(name=name))
            except NotFound as error:
                missing, num_missing = error, num_missing + 1
        if missing is not None and num_missing == len(addresses):
            raise missing
        await self._until_known(name, None)

    async def _call(self, address: str, method: str, request: Any) -> Any:
        async with open_channel(address, tls=self._tls) as channel:
            stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            try:
                return await getattr(stub, method)(request, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise from_code(error.code().value[0], words_of(error)) from None

    async def _until_known(self, name: str, adapter: Adapter | None) -> None:
        """Raises Unavailable, though the change is made, if the schedulers do not tell."""
        try:
            async with asyncio.timeout(KNOWN_WITHIN_S):
                while self._schedulers.models.adapter(name) != adapter:  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_INTERVAL_S)
        except TimeoutError:
            raise Unavailable(f"the schedulers do not tell yet of {name}") from None
