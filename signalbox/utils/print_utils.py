"""The line that vLLM's examples print of a vector."""

from collections.abc import Sequence

SHOWN = 4
"""Numbers of a vector that are printed."""


def print_embeddings(embeds: Sequence[float], prefix: str = "Embeddings") -> None:
    """Prints the first numbers of a vector, and how many it has."""
    numbers = ", ".join(map(str, embeds[:SHOWN]))
    more = ", ..." if len(embeds) > SHOWN else ""
    print(f"{prefix}: [{numbers}{more}] (size={len(embeds)})")
