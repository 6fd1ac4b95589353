"""Drafts of the fake worker: good ones, bad ones, some of both, fewer than it may have."""

from signalbox_contract.columns import int32s, int64s
from signalbox_contract.sections.drafts import DraftCounts, DraftSource

SOURCES = (DraftSource.TEXT, DraftSource.PREDICTION)


def propose(right: list[int], kind: str, *, vocab_size: int) -> list[int]:
    """Returns at most as many drafts as there are right ones: all of them for "g", "m" with wrong
    ones from the middle on, one right one for "o", wrong ones for "b", none for "n"."""
    first_wrong = {"b": 0, "m": len(right) // 2}.get(kind, len(right))
    wrong = [(token_id + 1) % vocab_size for token_id in right[first_wrong:]]
    return (right[:first_wrong] + wrong)[: {"n": 0, "o": 1}.get(kind, len(right))]


def draft_counts(drafts: dict[int, list[int]]) -> DraftCounts | None:
    """Returns what a result says of the drafts of each sequence, which come from two sources."""
    computed = {seq_id: len(tokens) for seq_id, tokens in drafts.items() if tokens}
    if not computed:
        return None
    return DraftCounts(
        int64s(list(computed)),
        int32s(list(computed.values())),
        int32s([int(SOURCES[seq_id % 2]) for seq_id in computed]),
    )
