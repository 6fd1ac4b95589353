"""Names of sequences: unique in this process, so that a group may move between workers."""

from dataclasses import dataclass


@dataclass(slots=True)
class SequenceIds:
    """Counts up. A replay sets where it begins."""

    next: int = 1

    def allocate(self) -> int:
        taken = self.next
        self.next += 1
        return taken


sequence_ids = SequenceIds()


def next_seq_id() -> int:
    """Returns an id that no other sequence of this process has."""
    return sequence_ids.allocate()
