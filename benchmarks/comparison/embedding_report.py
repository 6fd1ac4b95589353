"""What a comparison of servers of embeddings measured, and its tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from signalbox.bench.measurements import Measured, percentile_ms
from signalbox.bench.workload import BenchRequest, SyntheticTexts
from signalbox_worker.batch.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Clients, each with one request after the other."""

    clients: int
    num_requests: int
    texts_per_request: int = 1

    @property
    def title(self) -> str:
        clients = "1 client" if self.clients == 1 else f"{self.clients} clients"
        return f"{clients}, {self.texts_per_request:,} a call"

    def asks(self, *, max_words: int, seed: int) -> list[BenchRequest]:
        return SyntheticTexts(
            num_requests=self.num_requests,
            max_words=max_words,
            texts_per_request=self.texts_per_request,
            seed=seed,
        ).asks()


@dataclass(slots=True)
class Turn:
    """What a server has shown in one turn."""

    loads: dict[Load, Measured] = field(default_factory=dict)
    vectors: FloatArray | None = None
    """[num_texts, num_dimensions] float32, of the texts that all servers embed."""
    gaps_alone_s: list[float] = field(default_factory=list)
    gaps_beside_s: list[float] = field(default_factory=list)
    """Times between the tokens of a chat stream, alone and while texts are embedded."""


def report(results: dict[str, list[Turn]], loads: Sequence[Load]) -> str:
    """Returns Markdown tables: medians of the rounds, throughput beside that of the first row."""
    turns = {name: found for name, found in results.items() if found}
    return "\n".join((*_throughput(turns, loads), *_differences(turns), *_gaps(turns)))


def _throughput(turns: dict[str, list[Turn]], loads: Sequence[Load]) -> Iterator[str]:
    yield "| load | server | texts/s | of the first | latency p50 / p99 ms | rounds |"
    yield "|---|---|---|---|---|---|"
    for load in loads:
        first = None
        for name, found in turns.items():
            runs = [turn.loads[load] for turn in found]
            rate = median(run.num_texts / run.duration_s for run in runs)
            first = first or rate
            times = " / ".join(
                f"{median(percentile_ms(run.whole_s, percent) for run in runs):.1f}"
                for percent in (50, 99)
            )
            cells = (load.title, name, f"{rate:.1f}", f"{rate / first:.2f}", times, len(runs))
            yield f"| {' | '.join(map(str, cells))} |"


def _differences(turns: dict[str, list[Turn]]) -> Iterator[str]:
    """Yields how far each server's vectors are from the first one's."""
    first = None
    for name, found in turns.items():
        vectors = found[0].vectors
        if vectors is None:
            continue
        if first is None:
            first = vectors
            yield ""
        elif vectors.shape != first.shape:
            yield f"- {name}: vectors of {vectors.shape[1]} elements, not {first.shape[1]}"
        else:
            largest = float(np.abs(vectors - first).max())
            yield f"- {name}: elements differ by at most {largest:.1e}"


def _gaps(turns: dict[str, list[Turn]]) -> Iterator[str]:
    measured = {name: found for name, found in turns.items() if found[0].gaps_beside_s}
    if not measured:
        return
    yield "\n| beside | ms between tokens, alone: p50 / longest | beside: p50 / longest |"
    yield "|---|---|---|"
    for name, found in measured.items():
        cells = [
            f"{median(percentile_ms(gaps, 50) for gaps in runs):.1f}"
            f" / {max(map(max, runs)) * 1e3:.0f}"
            for runs in (
                [turn.gaps_alone_s for turn in found],
                [turn.gaps_beside_s for turn in found],
            )
        ]
        yield f"| {name} | {' | '.join(cells)} |"
