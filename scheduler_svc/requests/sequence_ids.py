"""Names of sequences: unique in this process, so that a group may move between workers."""

import itertools

_ids = itertools.count(1)


def next_seq_id() -> int:
    """Returns an id that no other sequence of this process has."""
    return next(_ids)
