"""Keeps responses in the router's memory, until it ends."""

from collections import Counter
from dataclasses import replace

from signalbox_router.apis.stored_responses.response_store import Bounds, ResponseStore
from signalbox_router.apis.stored_responses.shared_pieces import SharedPiece
from signalbox_router.apis.stored_responses.stored_response import StoredRow


class TenantShare:
    """The responses of one tenant in the store, and the pieces that they share."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._ended: dict[str, None] = {}
        """Ids of responses that do not run, oldest first."""
        self._pieces: dict[bytes, SharedPiece] = {}
        self._num_uses = Counter[bytes]()

    def add(self, row: StoredRow) -> StoredRow:
        """Returns the row with the pieces that the share has already."""
        if not row.is_running:
            self._ended[row.id] = None
        self.num_bytes += row.num_bytes
        for piece in row.pieces:
            if piece.name not in self._pieces:
                self._pieces[piece.name] = piece
                self.num_bytes += len(piece.content)
            self._num_uses[piece.name] += 1
        return replace(row, pieces=tuple(self._pieces[piece.name] for piece in row.pieces))

    def subtract(self, row: StoredRow) -> None:
        self._ended.pop(row.id, None)
        self.num_bytes -= row.num_bytes
        for piece in row.pieces:
            self._num_uses[piece.name] -= 1
            if not self._num_uses[piece.name]:
                del self._num_uses[piece.name], self._pieces[piece.name]
                self.num_bytes -= len(piece.content)

    def oldest(self, *, but: str) -> str | None:
        """Returns the oldest response that does not run, other than one."""
        return next((one for one in self._ended if one != but), None)


class MemoryResponseStore(ResponseStore):
    """Keeps responses in the order in which they were made."""

    place = "this router's memory"

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._rows: dict[str, StoredRow] = {}
        self._running: dict[str, StoredRow] = {}
        self._shares: dict[str, TenantShare] = {}
        self._num_bytes = 0

    async def put(self, row: StoredRow) -> None:
        self._put(row)

    async def replace(self, row: StoredRow) -> bool:
        known = self._running.get(row.id)
        if known is None or known.owner != row.owner:
            return False
        self._put(row, instead_of=known)
        return True

    async def get(self, response_id: str, *, tenant: str) -> StoredRow | None:
        self._drop_old()
        row = self._rows.get(response_id)
        if row is None or row.tenant != tenant or self._is_old(row):
            return None
        return row

    async def remove(self, response_id: str, *, tenant: str) -> bool:
        if await self.get(response_id, tenant=tenant) is None:
            return False
        self._forget(response_id)
        return True

    def usage(self) -> tuple[int, int]:
        return len(self._rows), self._num_bytes

    def _put(self, row: StoredRow, *, instead_of: StoredRow | None = None) -> None:
        self._check_room(row)
        self._drop_old()
        if instead_of is not None:
            self._subtract(instead_of)
        share = self._shares.setdefault(row.tenant, TenantShare())
        before = share.num_bytes
        self._rows[row.id] = kept = share.add(row)
        self._num_bytes += share.num_bytes - before
        if row.is_running:
            self._running[row.id] = kept
        self._make_room(row.id)

    def _subtract(self, row: StoredRow) -> None:
        share = self._shares[row.tenant]
        before = share.num_bytes
        share.subtract(row)
        self._num_bytes += share.num_bytes - before
        self._running.pop(row.id, None)
        if not share.num_bytes:
            del self._shares[row.tenant]

    def _forget(self, response_id: str) -> None:
        self._subtract(self._rows.pop(response_id))

    def _is_old(self, row: StoredRow) -> bool:
        return not row.is_running and row.created_at < self.oldest_created_at()

    def _drop_old(self) -> None:
        oldest, found = self.oldest_created_at(), []
        for row in self._rows.values():
            if row.created_at >= oldest:
                break
            if not row.is_running:
                found.append(row.id)
        for response_id in found:
            self._forget(response_id)
        self.dropped(len(found), "age")

    def _check_room(self, row: StoredRow) -> None:
        """Raises StoreFull if there is no room for the row and the running responses."""
        self.check_size(row)
        stay = [row, *(one for one in self._running.values() if one.id != row.id)]
        pieces = {piece.name: len(piece.content) for one in stay for piece in one.pieces}
        num_bytes = sum(one.num_bytes for one in stay) + sum(pieces.values())
        if num_bytes > self.bounds.max_bytes:
            raise self.full()

    def _make_room(self, newest: str) -> None:
        """Drops responses of the tenants that use most, other than the newest one."""
        num_dropped = 0
        while self._num_bytes > self.bounds.max_bytes:
            shares = [one for one in self._shares.values() if one.oldest(but=newest)]
            oldest = max(shares, key=lambda share: share.num_bytes).oldest(but=newest)
            assert oldest is not None
            self._forget(oldest)
            num_dropped += 1
        self.dropped(num_dropped, "room")
