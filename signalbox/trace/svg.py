"""Draws a timeline as SVG, or as an HTML page around it, without external resources."""

from collections.abc import Iterable
from html import escape
from textwrap import shorten, wrap

from signalbox.trace.timeline_drawing import COLOURS, Drawing, Row, seconds

WIDTH = 960
LABELS = 190
TOTALS = 90
MAX_LABEL = 24
MAX_CHARS = 130
"""Characters of a line of text."""
ROW = 24
BAR = 14
MARGIN = 16
MAX_TICKS = 8
MIN_SEGMENT = 1.5
"""Width in pixels of the shortest segments."""
_FONT = "font-family='system-ui, sans-serif' font-size='13'"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; max-width: 62em; color: #222 }}
td {{ padding: .15em 1em .15em 0; vertical-align: top }}
td:first-child {{ text-align: right; white-space: nowrap; color: #666 }}
td:nth-child(2) {{ white-space: nowrap }}
</style></head><body>
{svg}
<table>
{notes}
</table></body></html>
"""


def to_svg(drawing: Drawing) -> str:
    """Returns an SVG document; each segment has its details as a tooltip."""
    top = MARGIN + ROW * (1 + len(_lines(drawing)))
    height = top + ROW * (len(drawing.rows) + 1) + MARGIN
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}'"
        f" viewBox='0 0 {WIDTH} {height}' {_FONT}>",
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
        *_heading(drawing),
        *_axis(drawing, top=top, height=height),
    ]
    for index, row in enumerate(drawing.rows):
        parts += _row(row, y=top + ROW * index, whole_ns=max(1, drawing.duration_ns))
    return "\n".join([*parts, "</svg>"]) + "\n"


def to_html(drawing: Drawing) -> str:
    """Returns a page with the drawing and all events."""
    notes = "\n".join(
        f"<tr><td>{seconds(at_ns)}</td><td>{escape(what)}</td><td>{escape(text)}</td></tr>"
        for at_ns, what, text in drawing.notes
    )
    return _PAGE.format(title=escape(drawing.title), svg=to_svg(drawing), notes=notes)


def _lines(drawing: Drawing) -> list[str]:
    return [part for line in drawing.lines for part in wrap(line, MAX_CHARS)]


def _heading(drawing: Drawing) -> Iterable[str]:
    title = f"<tspan font-weight='bold'>{escape(drawing.title)}</tspan>"
    yield f"<text x='{MARGIN}' y='{MARGIN + 10}' fill='#222'>{title}</text>"
    for index, line in enumerate(_lines(drawing), start=1):
        colour = "#b3261e" if drawing.is_error and index == 1 else "#555"
        y = MARGIN + 10 + ROW * index
        yield f"<text x='{MARGIN}' y='{y}' fill='{colour}'>{escape(line)}</text>"


def _axis(drawing: Drawing, *, top: int, height: int) -> Iterable[str]:
    bottom = height - MARGIN - ROW + 6
    whole_ns = max(1, drawing.duration_ns)
    for at_ns in range(0, whole_ns + 1, _tick_ns(whole_ns)):
        x = _x(at_ns, whole_ns)
        yield f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}' stroke='#e3e3e3'/>"
        label = f"{at_ns / 1e9:g} s" if whole_ns > 1e9 else f"{at_ns / 1e6:g} ms"
        yield (
            f"<text x='{x:.1f}' y='{bottom + 16}' fill='#888' text-anchor='middle'>{label}</text>"
        )


def _tick_ns(whole_ns: int) -> int:
    """Returns 1, 2 or 5 times a power of ten, so that there are at most MAX_TICKS."""
    power: int = 10 ** max(0, len(str(whole_ns)) - 2)
    return next(n * power for n in (1, 2, 5, 10, 20) if n * power * MAX_TICKS >= whole_ns)


def _row(row: Row, *, y: int, whole_ns: int) -> Iterable[str]:
    count = f" ×{len(row.segments)}" if len(row.segments) > 1 else ""
    label = shorten(row.label, MAX_LABEL, placeholder="…") + count
    baseline = y + BAR - 1
    x = MARGIN + 12 * row.indent
    yield f"<text x='{x}' y='{baseline}' fill='#222'>{escape(label)}</text>"
    for start_ns, end_ns, kind, text in row.segments:
        start, end = _x(start_ns, whole_ns), _x(end_ns, whole_ns)
        yield (
            f"<rect x='{start:.1f}' y='{y}' width='{max(MIN_SEGMENT, end - start - 0.5):.1f}'"
            f" height='{BAR}' fill='{COLOURS[kind]}'><title>{escape(text)}</title></rect>"
        )
    total = seconds(row.total_ns)
    yield (
        f"<text x='{WIDTH - MARGIN}' y='{baseline}' fill='#555' text-anchor='end'>{total}</text>"
    )


def _x(at_ns: int, whole_ns: int) -> float:
    left, right = MARGIN + LABELS, WIDTH - MARGIN - TOTALS
    return left + (right - left) * min(1.0, at_ns / whole_ns)
