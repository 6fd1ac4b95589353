"""Keeps responses in the router's memory, until it ends."""

from signalbox_router.apis.stored_responses.response_store import Bounds, ResponseStore
from signalbox_router.apis.stored_responses.stored_response import StoredRow


class MemoryResponseStore(ResponseStore):
    """Keeps responses in the order in which they were made."""

    place = "this router's memory"

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._rows: dict[str, StoredRow] = {}
        self._num_bytes = 0

    async def put(self, row: StoredRow) -> None:
        self._make_room(row)
        self._add(row)

    async def replace(self, row: StoredRow) -> bool:
        known = self._rows.get(row.id)
        if known is None or not known.is_running or known.owner != row.owner:
            return False
        self._make_room(row, instead_of=known)
        self._num_bytes -= known.num_bytes
        self._add(row)
        return True

    async def get(self, response_id: str, *, tenant: str) -> StoredRow | None:
        self._drop_old()
        row = self._rows.get(response_id)
        return row if row is not None and row.tenant == tenant else None

    async def remove(self, response_id: str, *, tenant: str) -> bool:
        if await self.get(response_id, tenant=tenant) is None:
            return False
        self._forget(response_id)
        return True

    def usage(self) -> tuple[int, int]:
        return len(self._rows), self._num_bytes

    def _add(self, row: StoredRow) -> None:
        self._rows[row.id] = row
        self._num_bytes += row.num_bytes

    def _forget(self, response_id: str) -> None:
        self._num_bytes -= self._rows.pop(response_id).num_bytes

    def _drop_old(self) -> None:
        oldest, found = self.oldest_created_at(), []
        for row in self._rows.values():
            if row.created_at >= oldest:
                break
            if not row.is_running:
                found.append(row.id)
        self._drop(found, "age")

    def _make_room(self, row: StoredRow, *, instead_of: StoredRow | None = None) -> None:
        self.check_size(row)
        self._drop_old()
        known = 0 if instead_of is None else instead_of.num_bytes
        excess = self._num_bytes - known + row.num_bytes - self.bounds.max_bytes
        found = []
        for one in self._rows.values():
            if excess <= 0:
                break
            if not one.is_running:
                found.append(one.id)
                excess -= one.num_bytes
        if excess > 0:
            raise self.full()
        self._drop(found, "room")

    def _drop(self, found: list[str], reason: str) -> None:
        for response_id in found:
            self._forget(response_id)
        self.dropped(len(found), reason)
