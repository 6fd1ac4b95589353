"""The live requests of a router by tenant and request id; a client may abort one by its id."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from signalbox_contract.errors import AlreadyExists, Cancelled, ResourceExhausted
from signalbox_contract.wording import counted
from signalbox_router.params import params_validation
from signalbox_router.requests.active_request import ActiveRequest

RETRY_AFTER_S = 1.0


@dataclass(slots=True)
class LiveRequest:
    """A request from its arrival to its end."""

    request_id: str
    request: ActiveRequest | None = None
    is_aborted: bool = False

    def begin(self, request: ActiveRequest) -> None:
        """Stores the request after it was sent to a scheduler."""
        self.request = request
        if self.is_aborted:
            self.abort()

    def abort(self) -> None:
        self.is_aborted = True
        if self.request is not None:
            self.request.fail(Cancelled("aborted by its request id"))
            self.request.release()


class RequestSlots:
    """The requests between arrival and end, of which there is a limited number."""

    def __init__(self, max_live: int) -> None:
        self.max_live = max_live
        self._live: dict[tuple[str, str], LiveRequest] = {}

    @property
    def num_live(self) -> int:
        return len(self._live)

    @contextmanager
    def reserve(self, request_id: str, *, tenant: str = "") -> Iterator[LiveRequest]:
        """Reserves the id, or a new one if it is empty, while the block runs."""
        request_id = request_id or uuid.uuid4().hex
        params_validation.check_request_id(request_id)
        live_id = (tenant, request_id)
        if live_id in self._live:
            raise AlreadyExists(f"a request with id {request_id!r} is live")
        if self.num_live >= self.max_live:
            raise ResourceExhausted(
                f"this router takes {counted(self.max_live, 'request')} at a time, and has as many",
                retry_after_s=RETRY_AFTER_S,
            )
        live = self._live[live_id] = LiveRequest(request_id)
        try:
            yield live
        finally:
            del self._live[live_id]

    def abort(self, request_id: str, *, tenant: str) -> None:
        """Ends a request; does nothing if no live request has this id."""
        if live := self._live.get((tenant, request_id)):
            live.abort()
