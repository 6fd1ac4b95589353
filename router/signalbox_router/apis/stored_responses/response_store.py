"""Interface of the stores of responses, with their bounds and counts.

A store is bounded in bytes and in age; it counts and logs the responses that it drops. If a
response could not be kept, its last event says `store: false`.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

from signalbox_contract.errors import ResourceExhausted, Unavailable
from signalbox_contract.wording import counted
from signalbox_router.apis.openai.requests.errors import NoSuchResponse
from signalbox_router.apis.stored_responses.stored_response import (
    DamagedResponse,
    OtherFormat,
    StoredResponse,
    StoredRow,
)
from signalbox_rpc.metrics.sample import Sample, counters, gauge

logger = logging.getLogger(__name__)

MAX_ID_CHARS = 128
SMALL_BYTES = 64 << 10
"""Most bytes that are compressed or read on the event loop, which takes about a millisecond."""
REASONS = ("age", "room", "damage", "failure")
T = TypeVar("T")


class StoreFailed(Unavailable):
    """The store cannot be read or written now."""


class StoreFull(ResourceExhausted):
    """The store has no room, even if it drops all responses that it may drop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a store."""

    max_bytes: int
    max_age_s: float

    def __str__(self) -> str:
        return f"up to {self.max_age_s:g} s, in {self.max_bytes >> 20} MiB"


class ResponseStore(ABC):
    """Keeps responses by their ids. A response that runs is kept whatever its age."""

    place: str
    """Name of the store in errors and in the log."""
    is_shared: ClassVar[bool] = False
    """True if other routers may change what this one has put there."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.num_dropped = Counter(dict.fromkeys(REASONS, 0))
        """Responses that were dropped, by the reason."""
        self._has_told_of_formats = False

    async def open(self) -> None:  # noqa: B027 (a store may need neither)
        """Prepares the store. Raises ValueError if it can never be used."""

    async def close(self) -> None:  # noqa: B027
        """Leaves running responses to other routers."""

    @abstractmethod
    async def put(self, row: StoredRow) -> None:
        """Adds a response. If it needs room, drops the oldest ones of the tenant that uses most,
        one after the other. Raises StoreFailed or StoreFull."""

    @abstractmethod
    async def replace(self, row: StoredRow) -> bool:
        """Replaces a running response. False if it is not there, no longer runs or has another
        owner than the row names; a row without an owner means this router. Raises StoreFailed or
        StoreFull."""

    @abstractmethod
    async def get(self, response_id: str, *, tenant: str) -> StoredRow | None:
        """Returns a response of the tenant. Raises StoreFailed."""

    @abstractmethod
    async def remove(self, response_id: str, *, tenant: str) -> bool:
        """Deletes a response of the tenant; False if there is none. Raises StoreFailed."""

    async def running(self, response_ids: Collection[str]) -> Collection[str]:
        """Returns those of this router's responses that still run and are still its own."""
        return response_ids

    async def adopt(self) -> list[StoredRow]:
        """Makes this router the owner of running responses whose routers are gone. Returns them;
        they may include others that it owns."""
        return []

    async def keep(self, response: StoredResponse) -> None:
        """Adds a response. Raises StoreFailed or StoreFull."""
        await self.put(await _off_loop(response.row, response.num_bytes))

    async def update(self, response: StoredResponse) -> bool:
        """Replaces a response that runs, as `replace` does."""
        return await self.replace(await _off_loop(response.row, response.num_bytes))

    async def find(
        self, response_id: str, *, tenant: str, param: str = "response_id"
    ) -> StoredResponse:
        """Returns a response of the tenant. Raises NoSuchResponse or StoreFailed."""
        row = await self.get(response_id, tenant=tenant)
        shown = repr(response_id[:MAX_ID_CHARS])
        if row is None:
            raise NoSuchResponse(
                f"{self.place} has no response {shown}; it keeps responses {self.bounds}, and other"
                " stores are not searched",
                param,
            )
        try:
            return await _off_loop(partial(StoredResponse.of, row), row.num_bytes_alone)
        except OtherFormat as error:
            self.tell_of_format(row.id)
            raise NoSuchResponse(f"{self.place} cannot read {shown}: {error}", param) from None
        except DamagedResponse as error:
            await self.remove(response_id, tenant=tenant)
            self.dropped(1, "damage")
            raise NoSuchResponse(f"{self.place} has dropped a response: {error}", param) from None

    def tell_of_format(self, response_id: str) -> None:
        """Logs, once, that there are responses of another version; they are kept as any other."""
        if not self._has_told_of_formats:
            self._has_told_of_formats = True
            logger.warning(
                "%s has responses that another version of the router wrote; this version cannot"
                " read them and leaves them there, such as %s", self.place, response_id,
            )  # fmt: skip

    def failed(self, error: Exception) -> None:
        """Counts and logs a response that could not be kept."""
        self.num_dropped["failure"] += 1
        logger.warning("a response was answered with store: false: %s", error)

    @abstractmethod
    def usage(self) -> tuple[int, int]:
        """Returns the numbers of responses and of bytes, as last known."""

    def samples(self) -> Iterator[Sample]:
        num_responses, num_bytes = self.usage()
        yield gauge("stored_responses", "Responses that are kept.", num_responses)
        yield gauge("stored_response_bytes", "Bytes of responses that are kept.", num_bytes)
        yield from counters(
            "stored_responses_dropped",
            "Responses that were dropped or could not be kept, by reason: age, room, damage,"
            " failure.",
            self.num_dropped,
            by="reason",
        )

    def oldest_created_at(self) -> float:
        """Returns the earliest `created_at` of a response that is not too old."""
        return time.time() - self.bounds.max_age_s

    def dropped(self, number: int, reason: str) -> None:
        """Counts and logs responses that are dropped."""
        if number:
            self.num_dropped[reason] += number
            level = logging.INFO if reason == "age" else logging.WARNING
            what = counted(number, "response")
            logger.log(level, "dropped %s of %s: %s", what, self.place, reason)

    def check_size(self, row: StoredRow) -> None:
        """Raises StoreFull for a response that is larger than the whole store."""
        if row.num_bytes_alone > self.bounds.max_bytes:
            raise StoreFull(
                f"a response of {row.num_bytes_alone} bytes is more than {self.place} holds; raise"
                " --response-store-size"
            )

    def full(self) -> StoreFull:
        return StoreFull(f"{self.place} is full of running responses", retry_after_s=1.0)


async def _off_loop(work: Callable[[], T], num_bytes: int) -> T:
    return work() if num_bytes <= SMALL_BYTES else await asyncio.to_thread(work)
