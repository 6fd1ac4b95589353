"""Makes the store of responses that a router's settings name."""

from signalbox_router.apis.stored_responses.memory_store import MemoryResponseStore
from signalbox_router.apis.stored_responses.response_store import Bounds, ResponseStore
from signalbox_router.apis.stored_responses.sqlite_store import SqliteStore
from signalbox_router.config import NO_STORE, SQLITE_PREFIX, ApiSettings


def make_store(settings: ApiSettings) -> ResponseStore | None:
    """Returns the store; None if responses are not kept."""
    if settings.response_store == NO_STORE:
        return None
    bounds = Bounds(
        max_bytes=settings.response_store_size << 20, max_age_s=settings.response_store_age
    )
    if settings.response_store.startswith(SQLITE_PREFIX):
        return SqliteStore(settings.response_store.removeprefix(SQLITE_PREFIX), bounds)
    return MemoryResponseStore(bounds)
