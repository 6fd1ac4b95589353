"""What a limited program may try: spin, take memory, write a file, wait, or say what it has."""

import resource
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from signalbox_rpc.lifetime.limited_program import limit_job

MIB = 1 << 20


def main() -> None:
    job, *arguments = sys.argv[1:]
    globals()[job](*arguments)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def spin() -> None:
    say("spins")
    while True:
        pass


def take(num_mib: str) -> None:
    with suppress(MemoryError):
        say(f"took {len(bytes(int(num_mib) * MIB)) // MIB}")


def write(path: str) -> None:
    try:
        Path(path).write_text("a", "utf-8")
    except OSError as error:
        say(type(error).__name__)


def find(module: str) -> None:
    found = find_spec(module)
    say(str(found is not None and found.origin))


def show_limits() -> None:
    say(str([resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU)]))


def wait() -> None:
    say("waits")
    time.sleep(600)


def spin_in_second_job() -> None:
    limit_job(cpu_s=600, memory_bytes=1 << 40)
    say(str(resource.getrlimit(resource.RLIMIT_AS)[0] > 1 << 40))
    limit_job(cpu_s=0.1, memory_bytes=1 << 40)
    spin()
