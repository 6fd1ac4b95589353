"""Answers with and without drafts, server against server: ours, and with --peers others.

    python -m benchmarks.drafts.served MODEL [--counting] [--peers DIR] [--clients 1 8 32] ...

MODEL is a file. With --counting it is of `benchmarks.harness.random_checkpoint --counting`, so that
answers copy as much of their prompts as those of `workloads` do, whatever the model's shape; other
models answer the texts themselves. Servers take turns, the next round in the opposite order.
tokens/s are those of all clients together while all get tokens. The bound is
the tokens of a step, over the cost of a step of its rows, which is measured first, as `gains` does.
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from benchmarks import cpu_step
from benchmarks.comparison.best_peer import spread
from benchmarks.comparison.report import table
from benchmarks.comparison.turns import Servers, in_turns, parser
from benchmarks.drafts.gains import Costs, step_ms
from benchmarks.drafts.workloads import OUTPUT_TOKENS, WORKLOADS, copied, counting, traces
from benchmarks.harness.closed_loop import drive
from benchmarks.peers.llama_server import Slots
from benchmarks.peers.process import ServerProcess, exit_on_sigterm
from signalbox.bench.measurements import Measured

VLLM_DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 8,
    "prompt_lookup_max": 8,
    "prompt_lookup_min": 3,
}
OF_LLAMA = {
    "ngram-simple": "--spec-type ngram-simple --spec-draft-n-max 64",
    "ngram-simple of 3": "--spec-type ngram-simple --spec-draft-n-max 64"
    " --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8",
    "ngram-cache": "--spec-type ngram-cache --spec-draft-n-max 8",
    "spec-default": "--spec-default",
}
"""Settings that its own guide advises, and one of lookups as short as ours."""
LEAST_REQUESTS = 4


class DraftCase(NamedTuple):
    workload: str
    clients: int


class DraftFigures(NamedTuple):
    """Figures of one server under one case, in one round."""

    tokens_per_s: float
    run: float
    """Tokens of a step of a sequence."""
    rows: float
    """Rows of a step of a sequence."""


Prompts = Mapping[DraftCase, Sequence[list[int]]]
Rounds = Mapping[str, Sequence[Mapping[DraftCase, DraftFigures]]]
"""Figures of the rounds by server."""


def make_prompts(workloads: Sequence[str], clients: Sequence[int], *, is_counting: bool) -> Prompts:
    """Returns prompts for each case; no two are alike."""
    counts = [max(LEAST_REQUESTS, one) for one in clients]
    made: dict[DraftCase, Sequence[list[int]]] = {}
    for place, workload in enumerate(workloads):
        found, number = traces(workload, sum(counts)), place * sum(counts)
        if is_counting:
            found = [
                counting(copied(one), prompt_tokens=len(one.prompt), number=number + index)
                for index, one in enumerate(found)
            ]
        edges = pairwise(accumulate(counts, initial=0))
        for one, (begin, end) in zip(clients, edges, strict=True):
            made[DraftCase(workload, one)] = [trace.prompt for trace in found[begin:end]]
    return made


async def measure(
    server: ServerProcess, prompts: Prompts, *, max_tokens: int
) -> dict[DraftCase, DraftFigures]:
    """Puts all cases to a server that is ready, as many requests at once as there are clients.

    Prompts are computed first, so that answers which are wanted at once begin at once.
    """
    found = dict[DraftCase, DraftFigures]()
    await drive(server.stream, [[7] * 64, [8] * 64], max_tokens=16, concurrency=2)  # warm-up
    for case, of_case in prompts.items():
        drafts, accepted = server.num_drafts, server.num_accepted
        num_decoded, decode_s = 0, 0.0
        for begin in range(0, len(of_case), case.clients):
            wave = of_case[begin : begin + case.clients]
            await drive(server.stream, wave, max_tokens=1, concurrency=case.clients)
            measured = await drive(
                server.stream, wave, max_tokens=max_tokens, concurrency=case.clients
            )
            tokens, seconds = while_all_decode(measured)
            num_decoded, decode_s = num_decoded + tokens, decode_s + seconds
        num_tokens = len(of_case) * (max_tokens - 1)
        num_steps = num_tokens - (server.num_accepted - accepted)
        found[case] = DraftFigures(
            tokens_per_s=num_decoded / decode_s,
            run=num_tokens / num_steps,
            rows=1 + (server.num_drafts - drafts) / num_steps,
        )
    return found


def while_all_decode(measured: Measured) -> tuple[int, float]:
    """Returns the tokens and the seconds from when all requests have their first token until one
    has its last; all were sent at once."""
    sent = min(arrival.at_s for arrival in measured.arrivals) - min(measured.first_token_s)
    begin, end = sent + max(measured.first_token_s), sent + min(measured.whole_s)
    tokens = sum(one.num_tokens for one in measured.arrivals if begin < one.at_s <= end)
    return tokens, end - begin


def rows(prompts: Prompts, rounds: Rounds, costs: Mapping[int, Costs]) -> list[list[str]]:
    """Returns the report; the first two servers are ours, without drafts and with."""
    off, on, *peers = rounds
    titles = ("without", "with", "over", "tokens a step", "bound", "share", "best peer", "over it")
    lines = [["workload", "clients", *titles]]
    for case in prompts:
        of = {name: [one[case] for one in runs] for name, runs in rounds.items() if runs}
        rates = {name: [one.tokens_per_s for one in runs] for name, runs in of.items()}
        gains = _over(rates[on], rates[off])
        run = statistics.median(one.run for one in of[on])
        num_rows = statistics.median(one.rows for one in of[on])
        bound = run / _relative(costs[case.clients], num_rows)
        medians = {name: statistics.median(rates[name]) for name in peers if name in rates}
        best = max(medians, key=lambda name: medians[name], default="")
        lines.append(
            [
                *(case.workload, str(case.clients)),
                *(spread(rates[name], ".1f") for name in (off, on)),
                spread(gains, ".2f"),
                f"{run:.2f} of {num_rows:.2f}",
                f"{bound:.2f}",
                spread([one / bound for one in gains], ".2f"),
                f"{best}, {medians[best]:.1f}" if best else "",
                spread(_over(rates[on], rates[best]), ".2f") if best else "",
            ]
        )
    return lines


def _over(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [our / their for our, their in zip(ours, theirs, strict=False)]


def _relative(costs: Costs, num_rows: float) -> float:
    """Returns what a step of rows costs over one of one row."""
    return float(np.interp(num_rows, [*costs], [*costs.values()]) / costs[1])


def participants(options: argparse.Namespace, prompts: Prompts) -> list[ServerProcess]:
    servers = Servers(options)
    ours = [
        servers.ours("without drafts", "--no-speculation"),
        servers.ours("drafts", *options.drafts.split()),
    ]
    longest = max(len(prompt) for of_case in prompts.values() for prompt in of_case)
    slots = Slots(count=max(options.clients), tokens=longest + OUTPUT_TOKENS + 8)
    peers = servers.llama("", slots=slots)
    for label, flags in OF_LLAMA.items():
        peers += servers.llama(label, *flags.split(), slots=slots)
    if not options.counting:
        peers += servers.vllm("")
        peers += servers.vllm("ngram", "--speculative-config", json.dumps(VLLM_DRAFTS))
    return [*ours, *(peer for peer in peers if peer.name in (options.only or [peer.name]))]


def main() -> None:
    exit_on_sigterm()
    options = parse()
    prompts = make_prompts(options.workloads, options.clients, is_counting=options.counting)
    runner = cpu_step.make_runner(options, str(options.model), "auto", "auto")
    costs = {clients: step_ms(runner, clients, options.rounds) for clients in options.clients}
    del runner
    tokens = max(4, OUTPUT_TOKENS // options.shrink)

    async def turn(server: ServerProcess, _: int) -> dict[DraftCase, DraftFigures]:
        return await measure(server, prompts, max_tokens=tokens)

    servers = participants(options, prompts)
    rounds = asyncio.run(in_turns(servers, turn, rounds=options.rounds))
    print(table(rows(prompts, rounds, costs)), end="")
    for name, runs in rounds.items():
        for case in prompts:
            each = " ".join(f"{one[case].tokens_per_s:.1f}" for one in runs)
            print(f"{name}, {case.workload}, {case.clients}: {each}")


def parse() -> argparse.Namespace:
    made = parser(__doc__)
    made.set_defaults(flags="")
    made.add_argument("--counting", action="store_true", help="MODEL counts")
    made.add_argument("--dtype", default="bfloat16", help="for the bound")
    made.add_argument("--drafts", default="--speculation", help="flags (default: %(default)s)")
    made.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    names = [name for name in WORKLOADS if name != "misled"]
    made.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=names)
    made.add_argument("--only", nargs="+", metavar="PEER", help="the whole name")
    options = made.parse_args()
    if options.model is None:
        made.error("a bound needs a MODEL")
    return options


if __name__ == "__main__":
    main()
