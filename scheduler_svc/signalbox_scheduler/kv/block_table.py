"""Reads block tables: entries are blocks, or `NO_BLOCK` where a group of layers keeps none."""

from collections.abc import Iterable, Sequence

from signalbox_contract.cache_groups import NO_BLOCK


def held(table: Sequence[int]) -> list[int]:
    """Returns the blocks of a table."""
    return [block for block in table if block != NO_BLOCK]


def num_held(tables: Iterable[Sequence[int]], *, column: int, num_groups: int) -> int:
    """Returns the blocks of one group in the tables of a request, each once."""
    return len({block for table in tables for block in held(table[column::num_groups])})
