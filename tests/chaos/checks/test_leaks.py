"""The leak check finds leaks that were planted in a process, and none where there is none."""

import asyncio
import os
import subprocess
import sys
import time

import pytest
from prometheus_client import generate_latest

from signalbox_rpc.metrics.registry import make_registry
from tests.chaos.checks.leaks import MIN_SAMPLES, Sample, find_leaks, sample_of

PREAMBLE = "import os, sys, threading, time\nkept = []\n"
LEAKS = {
    "rss_mib": "kept.append(bytearray(os.urandom(1 << 20)))",
    "open_files": "kept.append(open(os.devnull))",
    "threads": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
}
CALM = "bytearray(os.urandom(1 << 20)); open(os.devnull).close()"
NUM_STEPS = 2 * MIN_SAMPLES


def observe(statement: str) -> list[Sample]:
    """Samples a process that runs a statement when it is told to, after each time."""
    source = f"{PREAMBLE}for line in sys.stdin:\n    {statement}\n    print('done', flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    samples = []
    try:
        for _ in range(NUM_STEPS):
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
            samples.append(sample_of(process.pid))
            time.sleep(0.005)
    finally:
        process.kill()
        process.communicate()
    return samples


@pytest.mark.parametrize("column", LEAKS)
def test_a_planted_leak_is_found(column: str) -> None:
    (line,) = find_leaks({"service": observe(LEAKS[column])})
    assert line.startswith(f"service: {column} went from")


async def test_planted_tasks_are_found_in_what_a_service_shows() -> None:
    registry = make_registry(lambda: ())
    kept, samples = [], []
    for _ in range(NUM_STEPS):
        kept += [asyncio.create_task(asyncio.sleep(3600)) for _ in range(4)]
        samples.append(sample_of(os.getpid(), metrics=generate_latest(registry).decode()))
    for task in kept:
        task.cancel()
    (line,) = find_leaks({"service": samples})
    assert line.startswith("service: tasks went from")


def test_a_process_that_gives_everything_back_has_no_leak() -> None:
    assert find_leaks({"service": observe(CALM)}) == []


def test_what_is_filled_once_is_no_leak() -> None:
    full = Sample(rss_mib=200, open_files=40, threads=20)
    series = [Sample(rss_mib=10 * i, open_files=4 * i, threads=2 * i) for i in range(10)]
    assert find_leaks({"service": series + [full] * 30}) == []


def test_too_short_a_run_says_nothing() -> None:
    with pytest.raises(ValueError, match="samples"):
        find_leaks({"service": [Sample(rss_mib=1, open_files=1, threads=1)] * (MIN_SAMPLES - 1)})
