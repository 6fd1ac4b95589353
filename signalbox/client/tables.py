"""Prints the tables of commands on standard output, in one style."""

from rich.console import Console, RenderableType
from rich.table import Column, Table


def show(content: RenderableType) -> None:
    """Prints text or a table; numbers and paths in it get no colours."""
    Console(highlight=False).print(content)


def make_table(*columns: Column | str) -> Table:
    """Returns a table without lines; `right` makes a column of numbers."""
    return Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="dim")


def right(name: str) -> Column:
    return Column(name, justify="right", no_wrap=True)


def duration(seconds: float) -> str:
    """Returns a duration with a unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.3f} s"
