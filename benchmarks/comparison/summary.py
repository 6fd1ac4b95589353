"""Writes what the last comparison shows into benchmarks/README.md, and README.md's claim.

python -m benchmarks.comparison.summary

Both stand between marks, and are read from benchmarks/results/compare.json alone, so that no figure
there is written by hand.
"""

import re
import statistics
from pathlib import Path

from benchmarks.comparison.best_peer import (
    MIN_ROUNDS,
    RATE,
    SIZES,
    against_peers,
    against_the_machine,
    best_peer,
)
from benchmarks.comparison.loads import Kind
from benchmarks.comparison.participants import OURS
from benchmarks.comparison.report import not_measured, table
from benchmarks.comparison.results import Results, from_json

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/compare.json"
NO_CLAIM = (
    "- How fast it is beside other servers: [our figures](benchmarks/README.md#beside-peers)."
)


def summary(results: Results) -> str:
    """Returns the tables of benchmarks/README.md."""
    num_rounds = max((len(runs) for one in results.of.values() for runs in one.values()), default=0)
    head = (
        f"{results.machine}, {results.date}, version {results.version}, {num_rounds} rounds:"
        f" `{results.command}`, [by load](results/compare.md), [each round](results/compare.json)."
    )
    tables = [
        against_peers(results, Kind.STREAM),
        against_peers(results, Kind.OFFLINE),
        against_the_machine(results),
    ]
    parts = [head, *(table(lines).rstrip() for lines in tables if lines)]
    parts += [f"{results.rates}.", "\n".join(not_measured(results))]
    return "\n\n".join(part for part in parts if part.strip("."))


def claim(results: Results) -> str:
    """Returns README.md's line: the file's own form over the best peer in any form."""
    ratios = []
    for load in results.loads:
        if load.kind is Kind.STREAM and load.concurrency in SIZES:
            _, of_rounds = best_peer(results, load, OURS, RATE, same_form=False)
            if len(of_rounds) < MIN_ROUNDS:
                return NO_CLAIM
            ratios.append(f"{statistics.median(of_rounds):.1f}")
    peers = {name.split()[0] for name, beside in results.beside.items() if beside == OURS}
    peers |= {name.split()[0] for of in results.of.values() for name in of if results.beside[name]}
    if len(ratios) != len(SIZES) or results.found:
        return NO_CLAIM
    return (
        f"- On {results.machine.partition(',')[0]} the demonstration's file, without a flag, gives"
        f" {' / '.join(ratios)} times the tokens/s of the best of\n"
        f"  {', '.join(sorted(peers))} in any form, with 1 / 8 / 32 clients"
        " ([our figures](benchmarks/README.md#beside-peers))."
    )


def put(text: str, name: str, content: str) -> str:
    """Returns the text with other content between two marks. Raises ValueError without them."""
    begin, end = f"<!-- {name}: by benchmarks.comparison.summary -->", f"<!-- end of {name} -->"
    put, count = re.subn(
        f"{begin}.*?{end}", lambda _: f"{begin}\n{content}\n{end}", text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{count} places for {name!r}, not one")
    return put


def written(results: Results) -> dict[Path, str]:
    """Returns the files that have something of the results, as they are to be."""
    places = {
        ROOT / "benchmarks/README.md": ("comparison", summary(results)),
        ROOT / "README.md": ("claim", claim(results)),
    }
    return {
        path: put(path.read_text(encoding="utf-8"), name, content)
        for path, (name, content) in places.items()
    }


def main() -> None:
    for path, text in written(from_json(RESULTS.read_text(encoding="utf-8"))).items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
