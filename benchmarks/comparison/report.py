"""The comparison as Markdown and as a plot: medians, spread and ratios."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

from benchmarks.comparison.loads import Kind, Load
from benchmarks.comparison.results import Result, Results, as_json, machine

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes


def write(results: Results, folder: Path) -> None:
    """Writes compare.md, compare.json and compare.png."""
    (folder / "compare.md").write_text(markdown(results), encoding="utf-8")
    (folder / "compare.json").write_text(as_json(results), encoding="utf-8")
    plot(results, folder / "compare.png")


def markdown(results: Results) -> str:
    """One table for each load; medians, in brackets the lowest and highest of the rounds."""
    parts = [f"{machine()}\n"]
    parts += [_load_table(results, load) for load in results.loads if load.name in results.of]
    parts += [_against_the_best(results), _bound_table(results)]
    parts.append(_start_table(results))
    parts += [f"- {name}: {build}" for name, build in results.builds.items() if build]
    parts += [f"- {name}: {note}" for name, note in results.notes.items()]
    parts += [
        f"- {name}: not (or no longer) measured: {why}" for name, why in results.failures.items()
    ]
    return "\n".join(parts) + "\n"


def _against_the_best(results: Results) -> str:
    """Ours over the best peer's server beside it: a column for each load of streams."""
    loads = [load for load in results.loads if load.kind is Kind.STREAM and load.name in results.of]
    rows = [
        [f"{ours}: {title}", *(_best_ratio(results, load, ours, value, most) for load in loads)]
        for ours in (name for name, beside in results.beside.items() if not beside)
        for title, value, most in _COMPARED
    ]
    rows = [row for row in rows if any(row[1:])]
    if not rows:
        return ""
    lines = [["ours over the best peer's", *(load.title for load in loads)]]
    lines += [["---"] * len(lines[0]), *rows]
    return "### Against the best server\n\n" + _lines(lines)


_COMPARED: tuple[tuple[str, Callable[[Result], float], bool], ...] = (
    ("tokens/s", lambda run: run.tokens_per_s, True),
    ("TTFT p50", lambda run: run.ttft_p50_ms, False),
    ("between tokens p99", lambda run: run.between_p99_ms, False),
)
"""Figures that are compared; True where the most is the best."""


def _best_ratio(
    results: Results, load: Load, ours: str, value: Callable[[Result], float], most: bool
) -> str:
    """The median ratio of the rounds to the peer with the best median."""
    of_load = results.of[load.name]
    medians = {
        name: statistics.median(map(value, runs))
        for name, runs in of_load.items()
        if results.beside[name] == ours
    }
    if ours not in of_load or not medians:
        return ""
    best = (max if most else min)(medians, key=lambda name: medians[name])
    ratios = results.ratios(best, load.name, value)
    return f"{statistics.median(ratios):.2f} ({best})"


def _bound_table(results: Results) -> str:
    """Our libraries as a share of what the machine could give at the most."""
    lines = [["", "tokens/s", "bound", "share"], ["---"] * 4]
    for load in results.loads:
        for name, bound in results.bounds.get(load.name, {}).items():
            if runs := results.of.get(load.name, {}).get(name):
                rate = statistics.median(run.tokens_per_s for run in runs)
                share = f"{rate / bound:.2f}"
                lines.append([f"{name}, {load.title}", f"{rate:.1f}", f"{bound:.1f}", share])
    if not results.rates:
        return ""
    table = _lines(lines) if len(lines) > 2 else ""
    return f"### Against the machine\n\n{results.rates}\n\n{table}"


def _lines(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _load_table(results: Results, load: Load) -> str:
    has_latency = load.kind in (Kind.STREAM, Kind.PREFILL)
    latency = ["TTFT p50 / p99 ms", "between tokens p50 / p99 ms", "prompt tokens/s"]
    header = ["", "tokens/s", "ours / theirs", *(latency if has_latency else [])]
    header += ["ms CPU/token", "peak RSS MiB"]
    rows = [
        _row(results, load, name, runs, has_latency=has_latency)
        for name, runs in results.of[load.name].items()
    ]
    lines = [header, ["---"] * len(header), *rows]
    return f"### {load.title}\n\n" + _lines(lines)


def _row(
    results: Results, load: Load, name: str, runs: list[Result], *, has_latency: bool
) -> list[str]:
    ratios = results.ratios(name, load.name, lambda run: run.tokens_per_s)
    cells = [name, _spread([run.tokens_per_s for run in runs], ".1f"), _spread(ratios, ".2f")]
    if has_latency:
        cells.append(_pair([run.ttft_p50_ms for run in runs], [run.ttft_p99_ms for run in runs]))
        cells.append(
            _pair([run.between_p50_ms for run in runs], [run.between_p99_ms for run in runs])
        )
        cells.append(_prefill_rate(load, runs))
    cells.append(_cpu(runs))
    cells.append(f"{max(run.peak_rss_mib for run in runs):,.0f}" if runs[0].peak_rss_mib else "")
    return cells


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _pair(one: list[float], other: list[float]) -> str:
    return f"{statistics.median(one):.1f} / {statistics.median(other):.1f}"


def _prefill_rate(load: Load, runs: list[Result]) -> str:
    """A lone prompt's tokens over its time to first token."""
    if load.concurrency > 1:
        return ""
    tokens = load.shared_tokens + load.prompt_tokens
    return f"{tokens / statistics.median(run.ttft_p50_ms for run in runs) * 1e3:,.0f}"


def _cpu(runs: list[Result]) -> str:
    medians = {
        name: statistics.median(run.cpu_ms_per_token.get(name, 0.0) for run in runs)
        for name in runs[0].cpu_ms_per_token
    }
    return ", ".join(f"{name} {value:.2f}" for name, value in medians.items() if value >= 0.005)


def _start_table(results: Results) -> str:
    lines = ["### Command to ready\n", "| | s |", "|---|---|"]
    for name, all_seconds in results.start_to_ready_s.items():
        seconds = [value for value in all_seconds if value == value]  # NaN: it has never started
        if seconds:
            lines.append(f"| {name} | {_spread(seconds, '.1f')} |")
    return "\n".join(lines) + "\n"


def plot(results: Results, path: Path) -> None:
    """Bars of tokens/s for each load, with the spread; ours in one colour, peers in another."""
    loads = [load for load in results.loads if load.name in results.of]
    if not loads:
        return
    columns = min(3, len(loads))
    rows = -(-len(loads) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(5 * columns, 3 * rows), squeeze=False, layout="constrained"
    )
    for load, axis in zip(loads, axes.flat, strict=False):
        _bars(results, load, axis)
    for axis in axes.flat[len(loads) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _bars(results: Results, load: Load, axis: Axes) -> None:
    rates = {
        name: [run.tokens_per_s for run in runs] for name, runs in results.of[load.name].items()
    }
    medians = [statistics.median(values) for values in rates.values()]
    spread = [
        [median - min(values) for median, values in zip(medians, rates.values(), strict=True)],
        [max(values) - median for median, values in zip(medians, rates.values(), strict=True)],
    ]
    colours = ["tab:gray" if results.beside[name] else "tab:red" for name in rates]
    axis.barh(list(rates), medians, xerr=spread, color=colours)
    axis.invert_yaxis()
    axis.set_title(load.title, fontsize=9)
    axis.set_xlabel("output tokens/s")
