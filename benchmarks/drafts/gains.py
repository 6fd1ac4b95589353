"""How many drafts from a sequence's own text are accepted, what their rows cost, and the gain.

    python -m benchmarks.drafts.gains [MODEL] [--form auto] [--rounds 10] [--clients 1 8 32]

The first table replays the proposer over known prompts and answers: drafts change no answer, so a
model that gives these answers accepts as many. A cell has the mean tokens and rows of a step, and
the proposer's microseconds for a token. With MODEL, the second table has the milliseconds of steps
of 1 to 17 rows of each client's sequence, with a draw at each row, and in brackets their ratio to
the step of one row; medians of rounds in turn. The third one has tokens/s over those without
drafts, and in brackets the number of drafts that gives the most. It counts steps alone, neither the
proposer nor the scheduler, with one number of drafts for all steps.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import cpu_step
from benchmarks.comparison.report import table
from benchmarks.drafts.workloads import COUNTED, WORKLOADS, Trace, traces
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.drafts.chain import make_proposer
from signalbox_worker.drafts.proposer import NO_PREDICTION, DraftAsk, Proposer

MOST = (1, 2, 4, 8, 16)
"""Drafts of a step."""
USUAL = SpeculationConfig()
ROWS = (1, 2, 3, 5, 9, 17)
CONTEXT = 256

Costs = Mapping[int, float]
"""Milliseconds of a step, by rows of each sequence."""


@dataclass(slots=True)
class DraftReplay:
    """Steps that have given the tokens behind the first one of some answers."""

    num_tokens: int = 0
    rows: Counter[int] = field(default_factory=Counter)
    """Number of steps by rows of a sequence."""
    propose_s: float = 0.0

    @property
    def run(self) -> float:
        """Mean tokens of a step."""
        return self.num_tokens / self.rows.total()

    @property
    def mean_rows(self) -> float:
        return sum(rows * count for rows, count in self.rows.items()) / self.rows.total()

    def __str__(self) -> str:
        micros = self.propose_s / self.num_tokens * 1e6
        return f"{self.run:.2f} of {self.mean_rows:.2f}; {micros:.0f}"


def replay(found: Iterable[Trace], *, most: int, min_match: int = USUAL.min_match) -> DraftReplay:
    """Replays answers, each with at most so many drafts a step."""
    config = SpeculationConfig(num_tokens=most, min_match=min_match)
    proposer = make_proposer(config, vocab_size=COUNTED)
    done = DraftReplay()
    for seq_id, trace in enumerate(found):
        _replay(proposer, seq_id, trace, most, done)
        proposer.forget(seq_id)
    return done


def _replay(proposer: Proposer, seq_id: int, trace: Trace, most: int, done: DraftReplay) -> None:
    tokens = np.array([*trace.prompt, *trace.output], dtype=np.int32)
    known = len(trace.prompt) + 1
    done.num_tokens += len(tokens) - known
    while known < len(tokens):
        ask = DraftAsk(seq_id, tokens[:known], len(trace.prompt), most, NO_PREDICTION, None)
        start = time.perf_counter()
        drafts = proposer.propose([ask])[0].token_ids
        done.propose_s += time.perf_counter() - start
        done.rows[1 + len(drafts)] += 1
        known += 1
        for draft, token in zip(drafts, tokens[known - 1 : -1].tolist(), strict=False):
            if draft != token:
                break
            known += 1


def step_ms(runner: Any, num_seqs: int, rounds: int) -> Costs:
    """Returns the median for each number of rows; the first round warms up."""
    batches = {
        rows: cpu_step.make_batch(
            cpu_step.Case("", num_seqs, rows, CONTEXT, draws=rows), runner.model.vocab_size
        )
        for rows in ROWS
    }
    taken: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(rounds + 1):
        for rows, batch in batches.items():
            start = time.perf_counter()
            runner.execute(batch)
            taken[rows].append(time.perf_counter() - start)
    return {rows: statistics.median(times[1:]) * 1e3 for rows, times in taken.items()}


def gain(replayed: DraftReplay, costs: Costs) -> float:
    """Returns tokens/s over those of steps of one row."""
    whole_ms = sum(
        count * np.interp(rows, [*costs], [*costs.values()])
        for rows, count in replayed.rows.items()
    )
    return float(replayed.num_tokens * costs[1] / whole_ms)


def _best(replays: Mapping[int, DraftReplay], costs: Costs) -> str:
    gains = {most: gain(one, costs) for most, one in replays.items()}
    most = max(gains, key=lambda number: gains[number])
    return f"{gains[most]:.2f} ({most})"


def _print_gains(
    options: argparse.Namespace, replays: Mapping[str, Mapping[int, DraftReplay]]
) -> None:
    runner = cpu_step.make_runner(options, options.model, options.form, "auto")
    costs = {clients: step_ms(runner, clients, options.rounds) for clients in options.clients}
    titles = [f"{clients} clients" for clients in costs]
    lines = [["ms of a step", *titles]]
    for rows in ROWS:
        cells = (f"{one[rows]:.1f} ({one[rows] / one[1]:.2f})" for one in costs.values())
        lines.append([f"{rows} rows each", *cells])
    print(table(lines), flush=True)
    lines = [["tokens/s over those without drafts", *titles]]
    for name, of_most in replays.items():
        lines.append([name, *(_best(of_most, one) for one in costs.values())])
    print(table(lines), end="")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", metavar="MODEL")
    parser.add_argument("--form", choices=cpu_step.FORMS, default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--traces", type=int, default=32, help="of each workload")
    parser.add_argument("--min-match", type=int, default=USUAL.min_match, help="of the proposer")
    options = parser.parse_args()
    replays: dict[str, dict[int, DraftReplay]] = {}
    for workload in WORKLOADS:
        found = traces(workload, options.traces)
        replays[workload] = {
            most: replay(found, most=most, min_match=options.min_match) for most in MOST
        }
    lines = [["tokens of a step of rows; us", *(f"{most} drafts" for most in MOST)]]
    lines += [[name, *map(str, of_most.values())] for name, of_most in replays.items()]
    print(table(lines), flush=True)
    if options.model is not None:
        _print_gains(options, replays)


if __name__ == "__main__":
    main()
