"""`signalbox bench`: puts load on a router or an endpoint, and prints the measurements."""

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from signalbox.bench import flags, report, trace_file
from signalbox.bench.grpc_target import GrpcTarget
from signalbox.bench.http_target import HttpTarget
from signalbox.bench.load_loops import OnEnd, Send, closed_loop, open_loop
from signalbox.bench.measurements import Measured
from signalbox.bench.workload import BenchRequest, Synthetic, SyntheticTexts, poisson
from signalbox.client.connection import connection
from signalbox.client.tables import show
from signalbox_contract.wording import counted

EXAMPLES = flags.EXAMPLES
add_flags = flags.add_flags
CONCURRENCY = 8
NUM_REQUESTS = 64
_REASONS_SHOWN = 3


def run(options: dict[str, Any]) -> None:
    """Runs the load and prints its figures; after Ctrl-C those of the requests so far.

    Raises RuntimeError if requests failed, KeyboardInterrupt after Ctrl-C.
    """
    flags.check(options)
    title, measured = asyncio.run(_run(options))
    if options["json"]:
        print(json.dumps({"load": title, **report.summary(measured)}))
    else:
        show(report.render(measured, title))
    if measured.num_unfinished:
        sys.stdout.flush()
        raise KeyboardInterrupt
    if measured.failures:
        raise RuntimeError(failure_text(measured))


def failure_text(measured: Measured) -> str:
    """Returns how many requests failed, and of the most common reasons the first messages."""
    most_common = measured.failures.most_common(_REASONS_SHOWN)
    reasons = ", ".join(_described(reason, measured.messages[reason]) for reason, _ in most_common)
    if not measured.num_completed:
        return f"no request ended well: {reasons}"
    total = measured.num_completed + measured.num_failed
    return f"{measured.num_failed} of {counted(total, 'request')} failed: {reasons}"


def _described(reason: str, message: str) -> str:
    return f"{reason} ({message})" if message else reason


async def _run(options: dict[str, Any]) -> tuple[str, Measured]:
    how, timeout_s = connection(options), options["timeout"]
    replayed = trace_file.read(options["replay"]) if options["replay"] else []
    if url := options["url"]:
        async with HttpTarget(url, how, model=options["model"], timeout_s=timeout_s) as http:
            name = await http.model()
            asks = _asks(options, replayed, vocab_size=0)
            return await _load(options, http.send, asks, f"{name} at {url}")
    name = options["model"] or ""
    async with GrpcTarget(options["router"], how, model=name, timeout_s=timeout_s) as router:
        model = await router.model(task="embed" if options["embed"] else "generate")
        asks = _asks(options, replayed, vocab_size=model.vocab_size)
        return await _load(options, router.send, asks, f"{model.name} at {options['router']}")


def _asks(
    options: dict[str, Any], replayed: list[BenchRequest], *, vocab_size: int
) -> list[BenchRequest]:
    if replayed:
        return replayed[: options["requests"]]
    given = {name: options[name] for name in flags.DEFAULTS if options[name] is not None}
    asked = {**flags.DEFAULTS, "vocab_size": vocab_size, **given}
    if asked["embed"]:
        return SyntheticTexts(
            num_requests=options["requests"] or NUM_REQUESTS,
            max_words=asked["prompt_tokens"],
            texts_per_request=asked["texts"],
            seed=options["seed"],
        ).asks()
    return Synthetic(
        num_requests=options["requests"] or NUM_REQUESTS,
        prompt_tokens=asked["prompt_tokens"],
        max_tokens=asked["max_tokens"],
        shared_tokens=asked["shared_tokens"],
        num_prefixes=asked["num_prefixes"],
        vocab_size=asked["vocab_size"],
        is_chat=asked["chat"],
        ignore_eos=not asked["no_ignore_eos"],
        seed=options["seed"],
    ).asks()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """The times at which requests are sent, or the number that run at a time."""

    title: str
    at_s: Sequence[float] = ()
    concurrency: int = 0


def _pace(options: dict[str, Any], asks: Sequence[BenchRequest]) -> _Pace:
    if (rate := options["rate"]) is not None:
        at_s = poisson(rate, len(asks), seed=options["seed"])
        return _Pace(title=f"{rate:g} a second", at_s=at_s)
    times = [ask.at_s for ask in asks if ask.at_s is not None]
    if options["concurrency"] is None and times and len(times) == len(asks):
        speed = options["speed"] or 1.0
        at_s = [(one - times[0]) / speed for one in times]
        return _Pace(title=f"each at its time, {speed:g} times as fast", at_s=at_s)
    if options["speed"] is not None:
        raise ValueError("--speed needs a timestamp in each line, and no --concurrency or --rate")
    concurrency = options["concurrency"] or CONCURRENCY
    return _Pace(title=f"{concurrency} at a time", concurrency=concurrency)


async def _load(
    options: dict[str, Any], send: Send, asks: Sequence[BenchRequest], target: str
) -> tuple[str, Measured]:
    pace, measured = _pace(options, asks), Measured()
    title = f"{target}: {counted(len(asks), 'request')}, {pace.title}"
    with _progress(len(asks)) as on_end:
        if pace.concurrency:
            loop = closed_loop(
                send, asks, concurrency=pace.concurrency, on_end=on_end, measured=measured
            )
        else:
            loop = open_loop(send, asks, pace.at_s, on_end=on_end, measured=measured)
        if not await _is_interrupted(loop):
            return title, measured
    measured.num_unfinished = len(asks) - measured.num_completed - measured.num_failed
    return f"{title}, interrupted with {measured.num_unfinished} unfinished", measured


async def _is_interrupted(work: Coroutine[Any, Any, Any]) -> bool:
    """Runs to the end, or until Ctrl-C; returns True if it was interrupted."""
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(work)
    loop.add_signal_handler(signal.SIGINT, running.cancel)
    try:
        await asyncio.wait({running})
    finally:
        running.cancel()
        loop.remove_signal_handler(signal.SIGINT)
    if not running.cancelled():
        running.result()
    return running.cancelled()


@contextmanager
def _progress(total: int) -> Iterator[OnEnd]:
    """Shows a bar of the requests that have ended, on a terminal."""
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("requests", total=total)
        yield lambda: bars.advance(task)
