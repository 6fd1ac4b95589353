"""How attention divides a step among programs: what its plan must equal, and counts of programs.

    python -m tests.kernels.triton.attention_work

prints a table: what each kind of step gives its programs to do, of a Llama-3-8B layer on a device
of 132 processors.
"""

from collections.abc import Sequence
from typing import NamedTuple

QUERIES, KEYS = 4, 64
"""A tile of a decode whose groups have four heads."""
_PREFILL_QUERIES = 32
_PROCESSORS, _KV_HEADS, _BLOCK_SIZE = 132, 8, 16


class Item(NamedTuple):
    """Work of one program of a K and V head."""

    seq: int
    first_token: int
    queries: int
    position: int
    begin: int
    end: int
    first_item: int
    shares: int


def divide(
    lengths: Sequence[tuple[int, int]],
    *,
    spare: int,
    least_keys: int = 128,
    queries: int = QUERIES,
    keys: int = KEYS,
    is_causal: bool = True,
    window: int | None = None,
) -> list[Item]:
    """Returns the items of sequences of (query tokens, context tokens), without those of nothing.

    `work.py` has the rule.
    """
    tiles = list[tuple[int, int, int, int, int, int]]()
    start = total = 0
    works = list[int]()
    for seq, (num_new, context) in enumerate(lengths):
        last = 0
        for first in range(0, num_new, queries):
            position, count = context - num_new + first, min(queries, num_new - first)
            first_key = 0 if window is None else max(0, position - window + 1)
            end_key = context if window is None else min(context, position + count + window - 1)
            end_key = position + count if is_causal else end_key
            begin, end = first_key // keys, -(-end_key // keys)
            tiles.append((seq, start + first, count, position, begin, end))
            last = end - begin
        if not is_causal and num_new:  # as many as a tile of the sequence may have
            in_window = queries + 2 * (window or context) - 2
            last = min(-(-context // keys), (in_window + keys - 2) // keys + 1)
        works.append(last)
        total += last * -(-num_new // queries)
        start += num_new
    limit = max(-(-total // spare), -(-least_keys // keys)) if spare else 1 << 30
    divided = [tile for tile in tiles if works[tile[0]] > limit]
    items = list[Item]()
    for tile in (*divided, *(tile for tile in tiles if works[tile[0]] <= limit)):
        *known, begin, end = tile
        shares, first_item = -(-works[tile[0]] // limit), len(items)
        length = -(-(end - begin) // shares)
        for share in range(shares):
            at = begin + share * length
            items.append(Item(*known, at, min(at + length, end), first_item, shares))
    return items


class Counts(NamedTuple):
    """Programs of one launch."""

    programs: int
    empty: int
    """Those that have nothing to do."""
    longest: int
    """Key tiles of the program with the most."""
    rounds: float
    """Key tiles of each program that runs at a time, if all had the same."""


def count(items: Sequence[Item], launched: int, at_once: int = 2 * _PROCESSORS) -> Counts:
    """Counts the items of a launch of so many programs a K and V head.

    Args:
        at_once: programs that the device runs at a time.
    """
    sizes = [item.end - item.begin for item in items]
    busy = sum(size > 0 for size in sizes)
    return Counts(
        launched * _KV_HEADS,
        (launched - busy) * _KV_HEADS,
        max(sizes),
        sum(sizes) * _KV_HEADS / at_once,
    )


def by_lengths(lengths: Sequence[tuple[int, int]]) -> Counts:
    """Counts what `work.py` does."""
    is_prefill = max(num_new for num_new, _ in lengths) > QUERIES
    queries = _PREFILL_QUERIES if is_prefill else QUERIES
    at_once = _PROCESSORS * (1 if is_prefill else 2)
    spare = -(-at_once // _KV_HEADS)
    num_tokens = sum(num_new for num_new, _ in lengths)
    tiles = (num_tokens + len(lengths) * (queries - 1)) // queries
    return count(divide(lengths, spare=spare, queries=queries), tiles + spare, at_once)


def by_shapes(lengths: Sequence[tuple[int, int]], *, longest: int) -> Counts:
    """Counts what a number of shares gives that all tiles have, and that sees only shapes.

    Args:
        longest: tokens of the longest context that the table of blocks has room for.
    """
    tiles = sum(num_new for num_new, _ in lengths) // QUERIES + len(lengths)
    shares = 1
    while shares < 32 and shares * tiles * _KV_HEADS < _PROCESSORS and longest > 2 * shares * 256:
        shares *= 2
    items = list[Item]()
    for item in divide(lengths, spare=0):
        length = -(-item.end // shares)
        for share in range(shares):
            end = min((share + 1) * length, item.end)
            items.append(item._replace(begin=min(share * length, end), end=end))
    return count(items, tiles * shares)


STEPS = {
    "decode of 1, context 512": [(1, 512)],
    "decode of 1, context 32k": [(1, 32768)],
    "decode of 256, context 512": [(1, 512)] * 256,
    "255 of 512, 1 of 128k": [*[(1, 512)] * 255, (1, 131072)],
    "255 of 512, 1 of 128k, 512 of a prompt": [*[(1, 512)] * 255, (1, 131072), (512, 512)],
    "16 of 8k, 128 of a prompt of 32k": [*[(1, 8192)] * 16, (128, 32768)],
}
"""Lengths of the sequences of steps."""


def main() -> None:
    print("| step | rule | programs | empty | longest | even |")
    print("|---|---|---|---|---|---|")
    for name, lengths in STEPS.items():
        longest = max(131072, *(context for _, context in lengths))
        for rule, counts in (
            ("shapes", by_shapes(lengths, longest=longest)),
            ("lengths", by_lengths(lengths)),
        ):
            numbers = f"{counts.programs} | {counts.empty} | {counts.longest}"
            print(f"| {name} | {rule} | {numbers} | {counts.rounds:.1f} |")


if __name__ == "__main__":
    main()
