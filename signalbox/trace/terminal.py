"""Draws a timeline with rich: a bar for each row, then the events in order."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from signalbox.client.tables import make_table, right
from signalbox.trace.timeline_drawing import COLOURS, Drawing, Segment, seconds

BAR_WIDTH = 36
MAX_LABEL = 28
MAX_NOTES = 60


def render(drawing: Drawing) -> RenderableType:
    """Returns the title, the bars and the notes."""
    parts: list[RenderableType] = [Text(drawing.title, style="bold")]
    for index, line in enumerate(drawing.lines):
        parts.append(Text(line, style="red" if drawing.is_error and index == 0 else ""))
    return Group(*parts, "", _bars(drawing), "", _notes(drawing))


def _bars(drawing: Drawing) -> Table:
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for row in drawing.rows:
        count = f" x{len(row.segments)}" if len(row.segments) > 1 else ""
        label = Text("  " * row.indent + row.label + count)
        label.truncate(MAX_LABEL, overflow="ellipsis")
        table.add_row(label, bar(row.segments, drawing.duration_ns), Text(seconds(row.total_ns)))
    return table


def bar(segments: Iterable[Segment], whole_ns: int) -> Text:
    """Returns a bar on which each segment is drawn in proportion, at least one cell wide."""
    cells = Text(" " * BAR_WIDTH)
    for segment in segments:
        first, last = _cells(segment, whole_ns)
        covered = Text("█" * (last - first), style=COLOURS[segment.kind])
        cells = cells[:first] + covered + cells[last:]
    return cells


def _cells(segment: Segment, whole_ns: int) -> tuple[int, int]:
    first = min(BAR_WIDTH - 1, segment.start_ns * BAR_WIDTH // max(1, whole_ns))
    last = max(first + 1, round(segment.end_ns * BAR_WIDTH / max(1, whole_ns)))
    return first, min(last, BAR_WIDTH)


def _notes(drawing: Drawing) -> Table:
    table = make_table(right("at"), Column("what", no_wrap=True), "")
    for note in drawing.notes[:MAX_NOTES]:
        table.add_row(seconds(note.at_ns), note.what, note.text)
    if len(drawing.notes) > MAX_NOTES:
        table.add_row("", "", f"and {len(drawing.notes) - MAX_NOTES} more; --html shows all")
    return table
