"""Ours against the best peer of each load: among those in the same form, and among all.

An aim is missed by the median of at least two rounds; one round gives no verdict.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.comparison.loads import Kind, Load
from benchmarks.comparison.participants import (
    OURS,
    OURS_BF16,
    OURS_OFFLINE,
    OURS_OFFLINE_BF16,
)
from benchmarks.comparison.results import Result, Results

NOTHING = "–"
MIN_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is compared."""

    name: str
    of: Callable[[Result], float]
    most_is_best: bool

    def misses(self, ratio: float, aim: float) -> bool:
        return ratio < aim if self.most_is_best else ratio > aim


RATE = Figure("tokens/s", lambda run: run.tokens_per_s, True)
FIGURES = {
    Kind.STREAM: (
        RATE,
        Figure("time to first token, p50", lambda run: run.ttft_p50_ms, False),
        Figure("time between tokens, p99", lambda run: run.between_p99_ms, False),
    ),
    Kind.PREFILL: (Figure("prompt tokens/s", lambda run: 1e3 / run.ttft_p50_ms, True),),
    Kind.OFFLINE: (RATE,),
}
_FIRST, _BETWEEN = (figure.name for figure in FIGURES[Kind.STREAM][1:])

AIMS: dict[tuple[str, str], tuple[float, ...]] = {
    (OURS, RATE.name): (1.5, 5, 6),
    (OURS_BF16, RATE.name): (1.5, 2.0, 1.8),
    **{(ours, _FIRST): (0.6, 0.6, 0.6) for ours in (OURS, OURS_BF16)},
    **{(ours, _BETWEEN): (0.7, 0.7, 0.7) for ours in (OURS, OURS_BF16)},
    (OURS_OFFLINE_BF16, RATE.name): (1.15, 1.6, 1.5),
}
"""Of ours over the best peer in the same form, with 1, 8 and 32 requests at a time."""
SAME_FILE_AIMS: dict[tuple[str, str], tuple[float, ...]] = {
    (OURS, RATE.name): (1.3, 3, 3.5),
    (OURS, FIGURES[Kind.PREFILL][0].name): (1.5,),
}
BOUND_AIMS: dict[str, tuple[float, ...]] = {
    OURS: (0.85,),
    **dict.fromkeys((OURS_OFFLINE, OURS_OFFLINE_BF16), (0.85, 0.7, 0.6)),
}
"""As a share of what the machine could give."""
SIZES = (1, 8, 32)


def best_peer(
    results: Results, load: Load, ours: str, figure: Figure, *, same_form: bool
) -> tuple[str, list[float]]:
    """Returns the peer with the best median and our ratio to it in each round; "" if there is none.

    Args:
        same_form: looks only at the peers that compute in the form of ours.
    """
    of_load = results.of.get(load.name, {})
    medians = {
        name: statistics.median(map(figure.of, runs))
        for name, runs in of_load.items()
        if results.beside[name] and (results.beside[name] == ours or not same_form)
    }
    if ours not in of_load or not medians:
        return "", []
    best = (max if figure.most_is_best else min)(medians, key=lambda name: medians[name])
    return best, results.ratios(ours, best, load.name, figure.of)


def against_peers(results: Results, kind: Kind) -> list[list[str]]:
    """Returns a row for each figure of ours and each circle of peers, a column for each load."""
    loads = [load for load in results.loads if load.kind is kind and load.name in results.of]
    rows = []
    for ours in (name for name, beside in results.beside.items() if not beside):
        for figure in FIGURES[kind]:
            for same_form in (True,) if results.is_same_file else (True, False):
                of_file = SAME_FILE_AIMS if results.is_same_file else AIMS
                aims = of_file.get((ours, figure.name)) if same_form else None
                form = "the same form" if same_form else "any form"
                cells = [
                    _cell(results, load, ours, figure, same_form=same_form, aims=aims)
                    for load in loads
                ]
                if any(cell != NOTHING for cell in cells):
                    title = f"{ours}: {figure.name} over the best peer in {form}"
                    rows.append([title, _written(aims), *cells])
    return [["", "aim", *(load.title for load in loads)], *rows] if rows else []


def _cell(
    results: Results,
    load: Load,
    ours: str,
    figure: Figure,
    *,
    same_form: bool,
    aims: Sequence[float] | None,
) -> str:
    best, ratios = best_peer(results, load, ours, figure, same_form=same_form)
    if not ratios:
        return NOTHING
    aim = _aim_of(load, aims)
    is_missed = aim is not None and figure.misses(statistics.median(ratios), aim)
    return f"{spread(ratios, '.2f', bold=is_missed and len(ratios) >= MIN_ROUNDS)}, {best}"


def against_the_machine(results: Results) -> list[list[str]]:
    """Returns our libraries as a share of what the machine could give at the most."""
    rows = []
    for load in results.loads:
        for name, bound in results.bounds.get(load.name, {}).items():
            if runs := results.of.get(load.name, {}).get(name):
                rates = [run.tokens_per_s for run in runs]
                shares = [rate / bound for rate in rates]
                of_decode = () if load.kind is Kind.PREFILL else BOUND_AIMS[name]
                aim = _aim_of(load, of_decode)
                is_missed = aim is not None and RATE.misses(statistics.median(shares), aim)
                share = spread(shares, ".2f", bold=is_missed and len(shares) >= MIN_ROUNDS)
                title = f"{name}, {load.title}"
                aimed_at = "" if aim is None else f"{aim:g}"
                rows.append([title, aimed_at, spread(rates, ".1f"), f"{bound:.1f}", share])
    return [["", "aim", "tokens/s", "bound", "share"], *rows] if rows else []


def _aim_of(load: Load, aims: Sequence[float] | None) -> float | None:
    return dict(zip(SIZES, aims or (), strict=False)).get(load.concurrency)


def _written(aims: Sequence[float] | None) -> str:
    return " / ".join(f"{aim:g}" for aim in aims or ())


def spread(values: Sequence[float], form: str, *, bold: bool = False) -> str:
    """Returns the median, with the lowest and highest if there are several."""
    if not values:
        return ""
    median = f"{statistics.median(values):{form}}"
    middle = f"**{median}**" if bold else median
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):{form}} to {max(values):{form}})"
