"""Reads block tables: entries are blocks, or `NO_BLOCK` where a group of layers keeps none."""

from collections.abc import Sequence

from signalbox_contract.cache_groups import NO_BLOCK


def held(table: Sequence[int]) -> list[int]:
    """Returns the blocks of a table."""
    return [block for block in table if block != NO_BLOCK]
