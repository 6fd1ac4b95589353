"""The comparison as Markdown and as a plot: medians, spread and ratios."""

import statistics
from pathlib import Path

import matplotlib

from benchmarks.comparison.best_peer import (
    NOTHING,
    RATE,
    against_peers,
    against_the_machine,
    spread,
)
from benchmarks.comparison.loads import Kind, Load
from benchmarks.comparison.results import Result, Results, as_json, from_json

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes


def write(results: Results, folder: Path) -> None:
    """Writes compare.md, compare.json and compare.png."""
    text = as_json(results)
    (folder / "compare.json").write_text(text, encoding="utf-8")
    (folder / "compare.md").write_text(markdown(from_json(text)), encoding="utf-8")
    plot(results, folder / "compare.png")


def markdown(results: Results) -> str:
    """One table for each load; medians, in brackets the lowest and highest of the rounds.

    "found" are the prompt tokens that were in a prefix cache; "?" if the participant does not tell.
    """
    parts = [f"{results.machine}; version {results.version}, {results.date}: `{results.command}`\n"]
    if results.found:
        parts.append(f"**This run is no comparison**: {results.found}\n")
    parts += [_load_table(results, load) for load in results.loads if load.name in results.of]
    parts.append(_table("Against the best server", against_peers(results, Kind.STREAM)))
    if results.is_same_file:
        parts.append(_table("Prefill", against_peers(results, Kind.PREFILL)))
    parts.append(_table("Against the best library", against_peers(results, Kind.OFFLINE)))
    parts.append(_table("Against the machine", against_the_machine(results), results.rates))
    parts.append(_start_table(results))
    parts += [f"- {name}: {build}" for name, build in results.builds.items() if build]
    parts += [f"- {name}: {note}" for name, note in results.notes.items()]
    parts += not_measured(results)
    return "\n".join(parts) + "\n"


def _table(title: str, lines: list[list[str]], text: str = "") -> str:
    if not lines and not text:
        return ""
    return f"### {title}\n\n" + (f"{text}\n\n" if text else "") + (table(lines) if lines else "")


def table(lines: list[list[str]]) -> str:
    """Returns a Markdown table of which the first line is the header."""
    header, *rows = lines
    return (
        "\n".join(f"| {' | '.join(one)} |" for one in (header, ["---"] * len(header), *rows)) + "\n"
    )


def not_measured(results: Results) -> list[str]:
    """Returns a line for each participant that failed, with the reason."""
    return [
        f"- {name}: not (or no longer) measured: {why}" for name, why in results.failures.items()
    ]


def _load_table(results: Results, load: Load) -> str:
    has_latency = load.kind in (Kind.STREAM, Kind.PREFILL)
    latency = ["TTFT p50 / p99 ms", "between tokens p50 / p99 ms", "prompt tokens/s"]
    header = ["", "tokens/s", "ours / theirs", *(latency if has_latency else [])]
    header += ["ms CPU/token", "peak RSS MiB", "found"]
    rows = [
        _row(results, load, name, runs, has_latency=has_latency)
        for name, runs in results.of[load.name].items()
    ]
    rows += [
        [name, *[NOTHING] * (len(header) - 1)]
        for name in results.failures
        if load.name in results.takes.get(name, ()) and name not in results.of[load.name]
    ]
    return _table(load.title, [header, *rows])


def _row(
    results: Results, load: Load, name: str, runs: list[Result], *, has_latency: bool
) -> list[str]:
    ratios = results.ratios(results.beside[name], name, load.name, RATE.of)
    cells = [name, spread([run.tokens_per_s for run in runs], ".1f"), spread(ratios, ".2f")]
    if has_latency:
        cells.append(_pair([run.ttft_p50_ms for run in runs], [run.ttft_p99_ms for run in runs]))
        cells.append(
            _pair([run.between_p50_ms for run in runs], [run.between_p99_ms for run in runs])
        )
        cells.append(_prefill_rate(load, runs))
    cells.append(_cpu(runs))
    cells.append(f"{max(run.peak_rss_mib for run in runs):,.0f}" if runs[0].peak_rss_mib else "")
    found = [run.num_found for run in runs if run.num_found is not None]
    cells.append(f"{max(found):,}" if found else "?")
    return cells


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
    lines = [[name, spread(seconds, ".1f")] for name, seconds in results.start_to_ready_s.items()]
    return _table("Command to ready", [["", "s"], *lines]) if lines else ""


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
