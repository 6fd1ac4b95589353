"""A run's figures: as JSON for scripts, as tables and bars for people."""

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from signalbox.bench.measurements import Measured, percentile_ms, tokens_by_time

PERCENTILES = (50, 90, 99)
NUM_BARS = 48
BAR_WIDTH = 40
_LEVELS = "▁▂▃▄▅▆▇█"
LATENCIES = {
    "time_to_first_token_ms": ("first token", "first_token_s"),
    "inter_token_latency_ms": ("between tokens", "between_tokens_s"),
    "request_latency_ms": ("whole request", "whole_s"),
}


def summary(measured: Measured) -> dict[str, Any]:
    """Returns all figures except the samples; None for those that were not measured."""
    seconds = measured.duration_s
    return {
        "duration_s": seconds,
        "completed": measured.num_completed,
        "failed": measured.num_failed,
        "unfinished": measured.num_unfinished,
        "failures": dict(measured.failures),
        "prompt_tokens": measured.num_prompt_tokens,
        "output_tokens": measured.num_tokens,
        "texts": measured.num_texts,
        "requests_per_s": measured.num_completed / seconds,
        "texts_per_s": measured.num_texts / seconds,
        "output_tokens_per_s": measured.num_tokens / seconds,
        "total_tokens_per_s": (measured.num_prompt_tokens + measured.num_tokens) / seconds,
        **{name: _latency(getattr(measured, of)) for name, (_, of) in LATENCIES.items()},
    }


def _latency(values_s: list[float]) -> dict[str, float | None]:
    if not values_s:
        return dict.fromkeys(("mean", *(f"p{p}" for p in PERCENTILES), "max"))
    return {
        "mean": math.fsum(values_s) / len(values_s) * 1e3,
        **{f"p{p}": percentile_ms(values_s, p) for p in PERCENTILES},
        "max": max(values_s) * 1e3,
    }


def render(measured: Measured, title: str) -> RenderableType:
    """Returns the tables and plots of a run."""
    parts: list[RenderableType] = [Text(title, "bold"), _throughput(measured)]
    if measured.num_texts:
        parts += [_latencies(measured), _histogram("whole request, ms", measured.whole_s)]
    if measured.first_token_s:
        parts += [_latencies(measured), _over_time(measured)]
        parts.append(_histogram("first token, ms", measured.first_token_s))
    if measured.between_tokens_s:
        parts.append(_histogram("between tokens, ms", measured.between_tokens_s))
    return Group(*parts)


def _throughput(measured: Measured) -> Table:
    figures = summary(measured)
    table = Table(show_header=False)
    table.add_row("requests", f"{figures['completed']:,} in {measured.duration_s:.1f} s")
    for reason, count in measured.failures.most_common():
        table.add_row(Text("failed", "red"), Text(f"{count:,}: {reason}"))
    table.add_row("requests/s", f"{figures['requests_per_s']:,.2f}")
    if measured.num_texts:
        table.add_row("texts/s", f"{figures['texts_per_s']:,.1f}")
    else:
        table.add_row("output tokens/s", f"{figures['output_tokens_per_s']:,.1f}")
    table.add_row("all tokens/s", f"{figures['total_tokens_per_s']:,.1f}")
    return table


def _latencies(measured: Measured) -> Table:
    table = Table("ms", "mean", *(f"p{p}" for p in PERCENTILES), "max")
    for column in table.columns[1:]:
        column.justify = "right"
    for title, of in LATENCIES.values():
        if values := getattr(measured, of):
            table.add_row(title, *(f"{value:,.1f}" for value in _latency(values).values()))
    return table


def _over_time(measured: Measured) -> Text:
    rates = tokens_by_time(measured, num_bins=NUM_BARS)
    if not rates:
        return Text()
    highest = max(rates)
    line = "".join(_LEVELS[round(rate / highest * (len(_LEVELS) - 1))] for rate in rates)
    return Text.assemble("\ntokens/s  ", (line, "cyan"), f"  at most {highest:,.0f}")


def _histogram(title: str, values_s: list[float]) -> Text:
    """Returns a bar for each of ten ranges of equal ratio, so that long tails are visible."""
    low, high = max(min(values_s), 1e-6), max(*values_s, 1e-6)
    num_ranges = 1 if high / low < 1.001 else 10
    edges = [low * (high / low) ** (i / num_ranges) for i in range(num_ranges + 1)]
    counts = [0] * num_ranges
    for value in values_s:
        place = math.log(max(value, low) / low) / math.log(high / low) if num_ranges > 1 else 0.0
        counts[min(int(place * num_ranges), num_ranges - 1)] += 1
    text = Text(f"\n{title}")
    for edge, upper, count in zip(edges, edges[1:], counts, strict=False):
        bar = "█" * math.ceil(count / max(counts) * BAR_WIDTH)
        text.append(f"\n{edge * 1e3:>9,.1f} to {upper * 1e3:>9,.1f} ")
        text.append(bar, "green").append(f" {count:,}")
    return text
