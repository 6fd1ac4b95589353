"""Loads an adapter of the workers' folder when the first request names it."""

import asyncio
import logging
from pathlib import PurePath
from typing import NamedTuple

from signalbox_contract.errors import NotFound, ResourceExhausted, Unavailable
from signalbox_contract.model import check_adapter_name
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.schedulers.adapter_client import SchedulerAdapters

logger = logging.getLogger(__name__)

WAIT_S = 60.0
"""Seconds that a request waits for its adapter; the load goes on."""
MAX_LOADS = 16
"""Adapters that are looked for at a time."""
_RETRY_AFTER_S = 5.0


class _Key(NamedTuple):
    """A load: models may have adapters of one name."""

    model: str
    name: str


class FirstUse:
    """Adapters that requests have named and that are being loaded, each once."""

    def __init__(self, adapters: SchedulerAdapters) -> None:
        self._adapters = adapters
        self._loads: dict[_Key, asyncio.Task[None]] = {}

    async def load(self, name: str, model: ServedModel) -> None:
        """Returns once requests may name the model's adapter, or if its workers have none of the
        name.

        Raises FailedPrecondition if it cannot be loaded, ResourceExhausted while many others are,
        Unavailable if that takes long.
        """
        if not _is_folder_name(name):
            return
        key = _Key(model.name, name)
        load = self._loads.get(key)
        if load is None:
            if len(self._loads) >= MAX_LOADS:
                raise ResourceExhausted(
                    f"{MAX_LOADS} adapters are being loaded; send the request again", _RETRY_AFTER_S
                )
            load = self._loads[key] = asyncio.create_task(
                self._load(name, model), name=f"loads {name}"
            )
            load.add_done_callback(lambda done: self._forget(key, done))
        done, _ = await asyncio.wait([load], timeout=WAIT_S)
        if not done:
            raise Unavailable(f"the adapter {name} is still being loaded", _RETRY_AFTER_S)
        load.result()

    def _forget(self, key: _Key, load: "asyncio.Task[None]") -> None:
        del self._loads[key]
        if not load.cancelled() and (error := load.exception()) is not None:
            logger.warning("the adapter %s of %s cannot be loaded: %s", key.name, key.model, error)

    async def _load(self, name: str, model: ServedModel) -> None:
        try:
            await self._adapters.load_at_first_use(name, model)
        except NotFound:
            return

    async def close(self) -> None:
        """Ends the wait for what is being loaded."""
        for load in self._loads.values():
            load.cancel()
        await asyncio.gather(*self._loads.values(), return_exceptions=True)


def _is_folder_name(name: str) -> bool:
    """Returns whether a name is that of an adapter, and of one folder."""
    try:
        check_adapter_name(name)
    except ValueError:
        return False
    return PurePath(name).name == name and name != ".."
