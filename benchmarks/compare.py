"""Us and every installed peer on the same work, in turn, several times.

    python -m benchmarks.compare --peers DIR MODEL.gguf [--rounds 5] [--only signalbox vllm] ...
    python -m benchmarks.compare --peers DIR MODEL.gguf --same-file --lengths 32 32 --loads 1 8 32

DIR has an environment for each peer and the model in their forms: DIR/vllm, DIR/ov, DIR/lcpp,
DIR/base (transformers), DIR/smol, DIR/smol-bf16.gguf and so on. A round gives every participant its
turn, the next round in the opposite order (ABBA). Nothing else should run on the machine.
With --same-file MODEL.gguf itself is served by us, llama.cpp and ik_llama.cpp, and nobody else.
"""

import argparse
import asyncio
import math
import os
import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import grpc

from benchmarks.comparison.bound import is_quantized, measure_rates, needs_of, tokens_per_s
from benchmarks.comparison.loads import BY_NAME, LOADS, Kind, Load, Prompts
from benchmarks.comparison.participants import (
    BFLOAT16_FLAGS,
    OURS,
    OURS_OFFLINE,
    OURS_OFFLINE_BF16,
    Participant,
    Setting,
    participants,
)
from benchmarks.comparison.report import write
from benchmarks.comparison.results import Result, Results
from benchmarks.harness.closed_loop import WrongTokenCount, drive
from benchmarks.peers.llama_server import Slots
from benchmarks.peers.offline import OfflineProcess
from benchmarks.peers.process import (
    FoundInCache,
    PeerUnavailable,
    ServerProcess,
    exit_on_sigterm,
    finding_nothing,
)
from signalbox.bench.http_stream import HttpStatusError
from signalbox.bench.measurements import Measured, percentile_ms
from signalbox_kernels.native import NativeUnavailable

FOLDER = Path(__file__).parent / "results"
_FAILURES = (
    PeerUnavailable,
    WrongTokenCount,
    HttpStatusError,
    OSError,
    EOFError,  # a server that ends within an answer
    grpc.aio.AioRpcError,
)


async def compare(
    everybody: list[Participant], loads: list[Load], *, num_rounds: int, results: Results
) -> None:
    """Runs the rounds; a participant that fails is out from then on."""
    prompts = Prompts()
    try:
        for round_number in range(num_rounds):
            order = everybody if round_number % 2 == 0 else everybody[::-1]
            for participant in order:
                is_out = participant.name in results.failures
                if not is_out and round_number < participant.max_rounds:
                    await _turn(participant, loads, prompts, round_number, results)
    finally:
        for participant in everybody:
            participant.process.stop()


async def _turn(
    participant: Participant,
    loads: list[Load],
    prompts: Prompts,
    round_number: int,
    results: Results,
) -> None:
    mine = [load for load in loads if load.kind in participant.kinds]
    process, started = participant.process, time.perf_counter()
    try:
        await process.start()
        if participant.name not in results.builds:
            results.builds[participant.name] = await asyncio.to_thread(process.build)
        warm_up = mine[0].warm_up()
        await measure(participant, warm_up, prompts.of(warm_up, round_number))
        for load in mine:
            result = await measure(participant, load, prompts.of(load, round_number))
            results.add(participant.name, load.name, result)
        process.rest()
    except (*_FAILURES, FoundInCache) as failure:
        if isinstance(failure, FoundInCache):
            results.found = f"{participant.name}: {failure}"
        results.failures[participant.name] = _in_one_line(failure)
        process.stop()
    results.notes |= {participant.name: process.note} if process.note else {}
    if not math.isnan(process.start_to_ready_s):
        results.start_to_ready_s.setdefault(participant.name, []).append(process.start_to_ready_s)
    print(
        f"round {round_number + 1}: {participant.name}: {time.perf_counter() - started:.0f} s"
        f" {results.failures.get(participant.name, '')}",
        flush=True,
    )


def bound(results: Results, setting: Setting) -> None:
    """Measures what the machine can do, and notes what ours could give at the most: our libraries,
    or our server beside others of the same file."""
    ours = {OURS_OFFLINE: True, OURS_OFFLINE_BF16: False}
    loads = [load for load in results.loads if load.kind is Kind.OFFLINE]
    if setting.is_same_file:
        ours, loads = {OURS: is_quantized(setting.model)}, results.loads
    if not loads or not ours.keys() & results.beside.keys():
        return
    try:
        rates = measure_rates(setting.num_threads)
    except NativeUnavailable as why:
        results.rates = f"no bound: {why}"
        return
    results.rates = (
        f"{setting.num_threads} threads read {rates.read_bytes / 1e9:.1f} GB/s and do"
        f" {rates.float_operations / 1e9:,.0f} GFLOP/s for bfloat16 weights,"
        f" {rates.byte_operations / 1e9:,.0f} Gop/s in 8 bits"
    )
    for name, in_bytes in ours.items():
        needs = needs_of(setting.model, in_bytes=in_bytes)
        for load in loads:
            results.bounds.setdefault(load.name, {})[name] = tokens_per_s(load, needs, rates)


def _in_one_line(failure: BaseException) -> str:
    if isinstance(failure, grpc.aio.AioRpcError):
        return f"{failure.code().name}: {failure.details()}"
    return str(failure) or repr(failure)


async def measure(participant: Participant, load: Load, prompts: list[list[int]]) -> Result:
    """Puts one load to a participant that is ready. Raises FoundInCache."""
    process = participant.process
    before = process.usage()
    if isinstance(process, OfflineProcess):
        measured, num_found = await _generate(process, prompts, load)
    else:
        assert isinstance(process, ServerProcess)
        process.num_found = None
        with nullcontext() if load.may_find else finding_nothing(process):
            measured = await _stream(process, prompts, load)
        num_found = process.num_found
    after = process.usage()
    cpu_ms = {
        name: seconds / measured.num_tokens * 1e3
        for name, seconds in after.cpu_s_since(before).items()
    }
    first, between = measured.first_token_s, measured.between_tokens_s
    return Result(
        tokens_per_s=measured.tokens_per_s,
        ttft_p50_ms=percentile_ms(first, 50),
        ttft_p99_ms=percentile_ms(first, 99),
        between_p50_ms=percentile_ms(between, 50),
        between_p99_ms=percentile_ms(between, 99),
        cpu_ms_per_token=cpu_ms,
        peak_rss_mib=sum(after.peak_rss_mib.values()),
        num_found=num_found,
    )


async def _stream(process: ServerProcess, prompts: list[list[int]], load: Load) -> Measured:
    if load.beam_width > 1:
        return await drive(
            partial(process.beams, width=load.beam_width),
            prompts,
            max_tokens=load.max_tokens,
            concurrency=load.concurrency,
            num_sequences=load.beam_width,
        )
    return await drive(
        process.stream, prompts, max_tokens=load.max_tokens, concurrency=load.concurrency
    )


async def _generate(
    process: OfflineProcess, prompts: list[list[int]], load: Load
) -> tuple[Measured, int | None]:
    batch = await process.generate(prompts, max_tokens=load.max_tokens)
    if batch.num_tokens != [load.max_tokens] * len(prompts):
        raise WrongTokenCount(f"{batch.num_tokens} tokens came, not {load.max_tokens} each")
    if batch.num_found and not load.may_find:
        raise FoundInCache(f"{batch.num_found} prompt tokens were found in its prefix cache")
    measured = Measured(duration_s=batch.seconds, num_tokens=sum(batch.num_tokens))
    return measured, batch.num_found


def chosen(everybody: list[Participant], words: list[str], loads: list[Load]) -> list[Participant]:
    """Returns those whose names contain one of the words (all without any), if they have a load."""
    kinds = {load.kind for load in loads}
    return [
        participant
        for participant in everybody
        if participant.kinds & kinds
        and (not words or any(word.lower() in participant.name.lower() for word in words))
    ]


def chosen_loads(names: Iterable[str]) -> list[Load]:
    """Returns the loads of these names; "offline" stands for all of its sizes."""
    wanted = set(names)
    if "offline" in wanted:
        wanted |= {load.name for load in LOADS if load.kind is Kind.OFFLINE}
    return [load for load in LOADS if load.name in wanted]


def slots_for(loads: Iterable[Load]) -> Slots:
    """Returns as many slots as clients, each as long as the longest request."""
    return Slots(
        count=max(load.concurrency for load in loads),
        tokens=max(load.shared_tokens + load.prompt_tokens + load.max_tokens for load in loads) + 8,
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, metavar="MODEL.gguf", help="what we serve")
    parser.add_argument("--peers", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waves", type=int, default=1, help="requests of each client")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="or a part of it")
    parser.add_argument("--loads", nargs="+", choices=[*BY_NAME, "offline"], default=list(BY_NAME))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--flags",
        default=BFLOAT16_FLAGS,
        help="of ours beside peers that compute in bfloat16 (default: %(default)s); the others of"
        " ours run with no flag",
    )
    parser.add_argument(
        "--lengths",
        nargs=2,
        type=int,
        metavar=("PROMPT", "ANSWER"),
        help="tokens of the requests of 1, 8 and 32 clients (default: 128 128)",
    )
    parser.add_argument("--same-file", action="store_true", help="peers serve MODEL.gguf, too")
    parser.add_argument("--shrink", type=int, default=1, help="divide all lengths, for a try")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    return parser.parse_args(arguments)


def main() -> None:
    exit_on_sigterm()
    options = parse(sys.argv[1:])
    options.output.mkdir(parents=True, exist_ok=True)
    loads = [
        load.repeated(options.waves).shrunk(options.shrink) for load in chosen_loads(options.loads)
    ]
    if options.lengths:
        loads = [load.of_lengths(*options.lengths) for load in loads]
    setting = Setting(
        model=options.model,
        peers=options.peers.resolve(),
        num_threads=options.threads,
        log_folder=options.output,
        bfloat16_flags=shlex.split(options.flags),
        slots=slots_for(loads),
        is_same_file=options.same_file,
    )
    everybody = chosen(participants(setting), options.only, loads)
    results = Results(
        loads=loads,
        is_same_file=options.same_file,
        beside={one.name: one.beside for one in everybody},
        takes={
            one.name: [load.name for load in loads if load.kind in one.kinds] for one in everybody
        },
    )
    bound(results, setting)  # while nothing else runs
    try:
        asyncio.run(compare(everybody, loads, num_rounds=options.rounds, results=results))
    finally:
        folder = str(setting.peers)
        results.failures = {
            name: why.replace(folder, "DIR") for name, why in results.failures.items()
        }
        write(results, options.output)
        print((options.output / "compare.md").read_text())
    if results.found:
        sys.exit(f"this run is no comparison: {results.found}")


if __name__ == "__main__":
    main()
