"""Measures what one feature costs: CPU of router and scheduler, and throughput, on and off.

    python -m benchmarks.on_off [MODEL] [--feature tracing|audits] [--rounds 30] ...

Two stacks, one with the feature: every request is traced, and its spans go over OTLP to a collector
that drops them; or answers are audited while the worker idles, at the default share of its time.
Both stay up; each round gives each its turn, in alternate order, with other prompts. Prints the
ratio on/off of each pair's CPU time for a token and of its throughput: their medians, and the
middle half. The aims are at most 1.15 times the CPU for tracing, and 0.98 of the throughput. A
third stack, without the feature as well, shows how much of it is noise.
"""

import argparse
import asyncio
import multiprocessing
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import median, quantiles

import grpc

from benchmarks.comparison.turns import Servers, parser
from benchmarks.memory.memory_pressure import SIMULATED_VOCAB_SIZE, VOCAB_SIZE, measure
from benchmarks.peers.signalbox_server import SignalboxServer

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
COUNTED = ("router", "scheduler")
OFF, ON, AGAIN = "off", "on", "off again"


@dataclass(slots=True)
class Series:
    """One stack's turns."""

    cpu_us_per_token: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)


def _collect(announce: Connection) -> None:
    """Takes whatever is exported and drops it; lives in a process of its own."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
    service, _, method = EXPORT.removeprefix("/").partition("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    announce.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    server.wait_for_termination()


@contextmanager
def collector() -> Iterator[str]:
    """Yields the URL of a collector."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_collect, args=(its,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()


async def turn(
    server: SignalboxServer, series: Series, options: argparse.Namespace, *, seed: int
) -> None:
    before = server.usage()
    measured = await measure(
        server,
        concurrency=options.concurrency,
        num_requests=options.requests,
        prompt_tokens=options.prompt_tokens,
        max_tokens=options.max_tokens,
        vocab_size=VOCAB_SIZE if options.model else SIMULATED_VOCAB_SIZE,
        seed=seed,
    )
    spent = server.usage().cpu_s_since(before)
    cpu_s = sum(spent.get(name, 0.0) for name in COUNTED)
    series.cpu_us_per_token.append(1e6 * cpu_s / measured.num_tokens)
    series.tokens_per_s.append(measured.tokens_per_s)


async def run(options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(collector())
        servers = Servers(options)
        simulated = () if options.model else ("--simulated-step-ms", str(options.step_ms))
        off, on = {
            "tracing": (("--trace-exporter", "none"), ("--trace-exporter", f"otlp={url}")),
            "audits": (("--audit-cpu", "0"), ()),  # on by default
        }[options.feature]
        stacks = {
            name: servers.ours(name, *flags, *simulated)
            for name, flags in ((OFF, off), (ON, on), (AGAIN, off))
        }
        results = {name: Series() for name in stacks}
        for server in stacks.values():
            stack.callback(server.stop)
            await server.start()
        for round_number in range(-1, options.rounds):
            names = list(stacks) if round_number % 2 else list(stacks)[::-1]
            for name in names:
                series = results[name] if round_number >= 0 else Series()  # the first warms up
                await turn(stacks[name], series, options, seed=round_number + 1)
            if round_number >= 0:
                print(f"round {round_number + 1}: {_last(results)}", flush=True)
    print(table(options.feature, results))


def _last(results: dict[str, Series]) -> str:
    return ", ".join(
        f"{name} {series.cpu_us_per_token[-1]:.0f} µs, {series.tokens_per_s[-1]:.0f} tokens/s"
        for name, series in results.items()
    )


def table(feature: str, results: dict[str, Series]) -> str:
    """Returns a Markdown table of each stack against the first, pair by pair."""
    lines = [
        f"\n| {feature} | CPU of router and scheduler, µs/token | ratio | tokens/s | ratio |",
        "|---|---|---|---|---|",
    ]
    first = next(iter(results.values()))
    for name, series in results.items():
        lines.append(
            f"| {name} | {median(series.cpu_us_per_token):.0f}"
            f" | {_ratios(series.cpu_us_per_token, first.cpu_us_per_token)}"
            f" | {median(series.tokens_per_s):.0f}"
            f" | {_ratios(series.tokens_per_s, first.tokens_per_s)} |"
        )
    return "\n".join(lines)


def _ratios(values: list[float], others: list[float]) -> str:
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    if len(ratios) < 4:
        return f"{median(ratios):.3f}"
    low, _, high = quantiles(ratios, n=4)
    return f"{median(ratios):.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(rounds=30)
    options.add_argument("--feature", choices=("tracing", "audits"), default="tracing")
    options.add_argument("--concurrency", type=int, default=32)
    options.add_argument("--requests", type=int, default=128, help="of each turn")
    options.add_argument("--prompt-tokens", type=int, default=128)
    options.add_argument("--max-tokens", type=int, default=128)
    options.add_argument("--step-ms", type=float, default=10.0, help="of a simulated worker")
    asyncio.run(run(options.parse_args()))


if __name__ == "__main__":
    main()
