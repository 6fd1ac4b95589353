"""Keeps the hashes of the last prompts of each owner.

Each owner has bounds of its own, so that no owner's requests displace another's; of owners, the
least recently used are forgotten.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import count, islice

from signalbox_router.prompt.prefix.comparison import PromptRecord

MAX_OWNERS = 64
MAX_RECORDS = 256
"""Records of one owner."""
MAX_BYTES = 512 << 10
"""Bytes of the hashes of one owner: those of 2 million tokens."""
OF_SESSION = 4
"""Last requests of a session that one is compared with: an agent has helpers beside it."""


class OwnerRecords:
    """The records of one owner, the oldest first."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, PromptRecord] = OrderedDict()
        self._num_bytes = 0
        self._numbers = count()

    def add(self, name: str, record: PromptRecord) -> str:
        """Adds a record, or puts it in the place of the one of the same name; returns its name.

        Args:
            name: id by which requests name it; empty if they cannot.
        """
        name = name or f"#{next(self._numbers)}"
        if (known := self._records.pop(name, None)) is not None:
            self._num_bytes -= known.num_bytes
        self._records[name] = record
        self._num_bytes += record.num_bytes
        while self._num_bytes > MAX_BYTES or len(self._records) > MAX_RECORDS:
            _, dropped = self._records.popitem(last=False)
            self._num_bytes -= dropped.num_bytes
        return name

    def find(self, name: str) -> PromptRecord | None:
        return self._records.get(name)

    def of_session(self, session: bytes) -> list[PromptRecord]:
        """Returns the last records of a session, the last one first."""
        return list(islice(self._of(session), OF_SESSION))

    def _of(self, session: bytes) -> Iterator[PromptRecord]:
        return (one for one in reversed(self._records.values()) if one.session == session)


class PromptRecords:
    """The records of all owners."""

    def __init__(self) -> None:
        self._owners: OrderedDict[bytes, OwnerRecords] = OrderedDict()

    def of(self, owner: bytes) -> OwnerRecords:
        """Returns the records of an owner, which is the last used one then."""
        records = self._owners.pop(owner, None) or OwnerRecords()
        self._owners[owner] = records
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)
        return records
