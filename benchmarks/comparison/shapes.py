"""A table of comparisons on one file each, a row for each model.

    python -m benchmarks.comparison.shapes FOLDER [FOLDER ...]

FOLDER is an --output of `benchmarks.compare --same-file`, named for its model; further loads of the
model are in MODEL+ANYTHING. A row has what ours gives, over the best peer in brackets the lowest
and highest round, and the share of the bound; an aim that is missed is in bold.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median

from benchmarks.comparison.best_peer import (
    FIGURES,
    MIN_ROUNDS,
    NOTHING,
    SAME_FILE_AIMS,
    best_peer,
    spread,
)
from benchmarks.comparison.loads import BY_NAME, Kind, Load
from benchmarks.comparison.participants import OURS
from benchmarks.comparison.report import table
from benchmarks.comparison.results import Results, from_json

_LOADS = ("prefill-512", "prefill-4096", "1", "8", "32")
_TITLES = ("prefill of 512", "prefill of 4,096", "1 client", "8 clients", "32 clients")


def rows(of_models: Iterable[tuple[str, Sequence[Results]]]) -> list[list[str]]:
    """Returns the header and a row for each model."""
    return [
        ["model", *_TITLES],
        *([name, *(_cell(results, load) for load in _LOADS)] for name, results in of_models),
    ]


def _cell(of_model: Sequence[Results], name: str) -> str:
    """Joins what the model's runs have of a load, of which the first counts."""
    for results in of_model:
        load = next((one for one in results.loads if one.name == name), BY_NAME[name])
        if runs := results.of.get(name, {}).get(OURS):
            scale = load.prompt_tokens if load.kind is Kind.PREFILL else 1
            rate = scale * median(map(FIGURES[load.kind][0].of, runs))
            return f"{rate:,.1f}{_ratio(results, load)}{_share(results, load, rate)}"
    return NOTHING


def _ratio(results: Results, load: Load) -> str:
    figure = FIGURES[load.kind][0]
    best, ratios = best_peer(results, load, OURS, figure, same_form=True)
    if not ratios:
        return ""
    place = {1: 0, 8: 1, 32: 2}[load.concurrency]
    is_missed = figure.misses(median(ratios), SAME_FILE_AIMS[OURS, figure.name][place])
    bold = is_missed and len(ratios) >= MIN_ROUNDS
    return f"; {spread(ratios, '.2f', bold=bold)}, {best.removesuffix('-server')}"


def _share(results: Results, load: Load, rate: float) -> str:
    """A prompt's answer is in the bound of its load, so that decode alone has a share."""
    bound = results.bounds.get(load.name, {}).get(OURS)
    return f"; {rate / bound:.2f}" if bound and load.kind is Kind.STREAM else ""


def read(folders: Iterable[Path]) -> list[tuple[str, list[Results]]]:
    """Returns the results of each model, in the order of the folders."""
    return [
        (name, [from_json((one / "compare.json").read_text(encoding="utf-8")) for one in of_model])
        for name, of_model in groupby(folders, lambda folder: folder.name.partition("+")[0])
    ]


if __name__ == "__main__":
    print(table(rows(read(map(Path, sys.argv[1:])))), end="")
