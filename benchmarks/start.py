"""Measures a start by parts: `signalbox serve` to SERVING, `LLM(...)`, and `signalbox demo`.

    python -m benchmarks.start [MODEL] [--rounds 10] [--cold] [--python PATH] [-- FLAG ...]

Each round starts each command in turn. The parts of `serve` are the moments of its log lines and of
its processes' creation, in seconds since the command began; the last is the first answer of
`/health` with status 200, asked for every 10 ms. CPU is what each process had used by then.
Prints median, minimum and maximum of each. With `--cold` the page cache is dropped before each
command, which takes root. `--python` is the interpreter of the environment to measure; this program
needs psutil, which serving does not.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import median

import psutil

from benchmarks.harness.process_usage import tree
from signalbox.stack.stack_addresses import free_port

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
POLL_S = 0.01
START_S = 120.0
"""Seconds after which a start counts as failed."""
_SERVICES = ("router", "scheduler", "worker")
_EVENTS = {
    "scheduler listens": ("scheduler", "listening on"),
    "worker begins to load": ("worker 0", "loading "),
    "router listens": ("router", "gRPC at"),
    "worker has its weights": ("worker 0", "is loaded on"),
    "worker ready": ("worker 0", "worker ready"),
    "worker joined": ("scheduler", "worker joined"),
    "router serves": ("router", "serving "),
}
"""Service and beginning of the log line of each part."""
_LLM = "import sys; from signalbox import LLM; LLM(sys.argv[1]).close()"
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def serve(python: str, model: str, flags: Sequence[str]) -> dict[str, float]:
    """Starts a stack, and ends it; returns the seconds of each part."""
    port = free_port()
    command = [python, "-m", "signalbox", "serve", model, "--log-format=json", *flags]
    command += [f"--http-port={port}", f"--grpc-port={free_port()}"]
    with tempfile.TemporaryFile("w+") as log:
        began = time.time()
        with subprocess.Popen(command, stderr=log) as process:
            try:
                serves = _wait_for_health(process, port)
                parts = {"health 200": time.time() - began}
                parts |= _processes(process.pid, began)
            finally:
                process.send_signal(signal.SIGTERM)
        log.seek(0)
        written = log.read()
    if not serves:
        raise SystemExit(f"signalbox serve did not serve within {START_S:g} s:\n{written}")
    return _events(written, began) | parts


def _wait_for_health(process: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with suppress(OSError):
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return True
        connection.close()
        time.sleep(POLL_S)
    return False


def _processes(pid: int, began: float) -> dict[str, float]:
    """Returns the creation and the CPU seconds of each process of a stack."""
    found: dict[str, float] = {}
    for process in tree(pid):
        words = process.cmdline()
        name = next((word for word in words if word in _SERVICES), "serve")
        if name != "serve":
            found[f"{name} created"] = process.create_time() - began
        times = process.cpu_times()
        found[f"CPU of {name}"] = times.user + times.system
    found["CPU of all"] = sum(s for name, s in found.items() if name.startswith("CPU"))
    return found


def _events(log: str, began: float) -> dict[str, float]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return {
        part: datetime.fromisoformat(line["time"]).timestamp() - began
        for part, (service, message) in _EVENTS.items()
        for line in reversed(lines)  # the first such line counts
        if line["service"] == service and line["message"].startswith(message)
    }


def run(command: Sequence[str]) -> float:
    """Returns the seconds that a command takes. Raises CalledProcessError if it fails."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def drop_caches() -> None:
    """Makes the next command read its files from the disk. Raises PermissionError."""
    os.sync()
    _DROP_CACHES.write_text("3", encoding="ascii")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default=MODEL, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each start")
    parser.add_argument("--python", default=sys.executable, help="interpreter to measure")
    parser.add_argument("flags", nargs="*", metavar="FLAG", help="flags of serve, after --")
    options = parser.parse_args()
    series: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        if options.cold:
            drop_caches()
        for part, seconds in serve(options.python, options.model, options.flags).items():
            series[part].append(seconds)
        for name, command in {
            "LLM(...), whole process": ["-c", _LLM, options.model],
            "demo, with its answer": ["-m", "signalbox", "demo", options.model],
        }.items():
            if options.cold:
                drop_caches()
            series[name].append(run([options.python, *command]))
    cores = len(psutil.Process().cpu_affinity())
    print(f"{cores} cores, {options.rounds} rounds, {'cold' if options.cold else 'warm'} files")
    print(f"{'seconds':<26} median   min   max")
    for name, values in series.items():
        print(f"{name:<26} {median(values):6.2f} {min(values):5.2f} {max(values):5.2f}")


if __name__ == "__main__":
    main()
