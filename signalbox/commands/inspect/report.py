"""A report of named sections with problems and notes, and how it is printed."""

from dataclasses import dataclass, field


class Unhealthy(RuntimeError):
    """A problem keeps Signalbox from running as installed, or from serving a model."""


@dataclass(slots=True)
class Report:
    """Sections of names and values, in words; None means that the thing is missing."""

    sections: dict[str, dict[str, str | None]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Problems that keep it from running, each with its remedy."""
    notes: list[str] = field(default_factory=list)
    """Further notes for the user."""

    def show(self) -> None:
        """Prints the report."""
        from rich.console import Console
        from rich.table import Table

        console = Console()
        for title, values in self.sections.items():
            table = Table(title=title, title_justify="left", box=None, show_header=False)
            table.add_column(style="dim", min_width=24, no_wrap=True)
            table.add_column(overflow="fold")
            for name, value in values.items():
                table.add_row(name, "none" if value is None else value)
            console.print(table)
        for note in self.notes:
            console.print(f"note: {note}", style="yellow", markup=False)
        for problem in self.problems:
            console.print(f"problem: {problem}", style="red", markup=False)

    def refuse(self) -> None:
        """Raises Unhealthy if there is a problem."""
        if self.problems:
            raise Unhealthy(f"problems: {len(self.problems)}; {self.problems[0]}")
