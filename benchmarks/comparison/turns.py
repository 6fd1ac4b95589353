"""One load against several servers, or one server in several settings: in turns, several times.

Shared by the benchmarks of memory: participants, rounds in the order ABBA, a table of medians.
"""

import argparse
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.comparison.participants import BFLOAT16_FLAGS
from benchmarks.peers.llama_server import LlamaServer, Slots
from benchmarks.peers.process import PeerProcess, PeerUnavailable, ServerProcess
from benchmarks.peers.signalbox_server import SignalboxServer
from benchmarks.peers.vllm_server import VllmHttpServer
from signalbox.bench.measurements import Measured, percentile_ms

_Server = TypeVar("_Server", bound=PeerProcess)
_Result = TypeVar("_Result")

BLOCK_SIZE, VLLM_BLOCK_SIZE = 16, 32
HEADER = (
    "| {} | tokens/s | of the first | TTFT p50 / p99 ms | between tokens p50 / p99 / longest ms |"
    " rounds |\n"
    "|---|---|---|---|---|---|"
)


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser of what all of them take."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("model", nargs="?", type=Path, help="without one the worker is simulated")
    made.add_argument("--peers", type=Path, help="folder with vllm/ and smol/, as for compare")
    made.add_argument("--threads", type=int, default=2, help="of a peer")
    made.add_argument("--flags", default=BFLOAT16_FLAGS, help="of ours, where there is a MODEL")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--shrink", type=int, default=1, help="divides lengths, to try it out")
    return made


class Servers:
    """Makes the participants of a benchmark; their logs go to a folder of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._logs = Path(tempfile.mkdtemp(prefix="signalbox-bench-"))

    def ours(self, label: str, *flags: str) -> SignalboxServer:
        own = tuple(self._options.flags.split()) if self._options.model else ()
        extra = (*own, "--block-size", str(BLOCK_SIZE), *flags)
        model = self._options.model
        return SignalboxServer(model, log_folder=self._logs, extra_arguments=extra, label=label)

    def vllm(self, label: str, *flags: str) -> list[ServerProcess]:
        """Returns vLLM's HTTP server, if there is a folder of peers."""
        if self._options.peers is None:
            return []
        extra = ("--block-size", str(VLLM_BLOCK_SIZE), *flags)
        server = VllmHttpServer(
            self._options.peers,
            num_threads=self._options.threads,
            log_folder=self._logs,
            extra_arguments=extra,
            label=label,
        )
        return [server]

    def llama(self, label: str, *flags: str, slots: Slots) -> list[ServerProcess]:
        """Returns a llama-server of our own file, if there is a folder of peers."""
        if self._options.peers is None:
            return []
        server = LlamaServer(
            self._options.peers,
            num_threads=self._options.threads,
            log_folder=self._logs,
            extra_arguments=flags,
            label=label,
            model=self._options.model,
            slots=slots,
        )
        return [server]


async def in_turns(
    servers: Sequence[_Server],
    measure: Callable[[_Server, int], Awaitable[_Result]],
    *,
    rounds: int,
) -> dict[str, list[_Result]]:
    """Gives each server its turn in each round; one that fails is out, and says why.

    Args:
        measure: puts the load of a round to a server that is ready.
    """
    results: dict[str, list[_Result]] = {server.name: [] for server in servers}
    alive = list(servers)
    try:
        for round_number in range(rounds):
            for server in list(alive) if round_number % 2 == 0 else alive[::-1]:
                try:
                    await server.start()
                    results[server.name].append(await measure(server, round_number))
                    server.rest()
                except PeerUnavailable as failure:
                    print(f"{server.name}: {failure}", flush=True)
                    alive.remove(server)
                    server.stop()
    finally:
        for server in servers:
            server.stop()
    return results


def table(title: str, results: dict[str, list[Measured]]) -> str:
    """Returns a Markdown table: medians of the rounds, throughput beside that of the first row."""
    lines = [HEADER.format(title)]
    measured = {name: runs for name, runs in results.items() if runs}
    first = _median(run.tokens_per_s for run in next(iter(measured.values()), []))
    for name, runs in measured.items():
        rate = _median(run.tokens_per_s for run in runs)
        lines.append(
            f"| {name} | {rate:.1f} | {rate / first:.2f}"
            f" | {_percentiles([run.first_token_s for run in runs], (50, 99), digits=0)}"
            f" | {_percentiles([run.between_tokens_s for run in runs], (50, 99, 100), digits=1)}"
            f" | {len(runs)} |"
        )
    return "\n".join(lines)


def _percentiles(runs: list[list[float]], percents: Sequence[int], *, digits: int) -> str:
    found = (_median(percentile_ms(values, percent) for values in runs) for percent in percents)
    return " / ".join(f"{value:.{digits}f}" for value in found)


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return median(found) if found else float("nan")
