"""Makes the recordings of this folder again, on purpose.

    python -m tests.scheduler_svc.service.replay.record [NAME ...]
    python -m tests.scheduler_svc.service.replay.record --settings OLD=NEW OLD= ...

Histories are made from their seeds, on simulated time. "chaos" records the scheduler of
`python -m tests.chaos`, whose processes are killed, "serving" that of the simulated load of
`python -m benchmarks.serving`: these differ each time. Prints of each whether it has the plans that
it had. `--settings` makes nothing again: it renames or drops settings in the headers, after which
all plans must be the same.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from signalbox_protos.recording.v1 import recording_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.service.replay.recording_file import RecordReader, RecordWriter
from tests.scheduler_svc.service.replay.recorded_histories import SCENARIOS, record_history

FOLDER = Path(__file__).parent / "recordings"
MOST_RECORDS = 10_000
"""Records that are kept of processes; a recording may end anywhere."""
CHAOS = ("-m", "tests.chaos", "--minutes", "0.5", "--seed", "3959", "--clients", "6", "--record")
SERVING = (
    *("-m", "benchmarks.serving", "--workers", "2", "--concurrency", "1", "8", "32"),
    *("--rounds", "1", "--prompt-tokens", "64", "--max-tokens", "32"),
    *("--simulated-step-ms", "10"),
)
OF_A_RUN = {"recording_path": "", "port": ""}
"""Settings that are dropped, since they are a machine's and differ each time."""


def _record_history(name: str, path: Path) -> None:
    print(f"{name}: {dict(record_history(path, SCENARIOS[name]))}")


def _record_chaos(path: Path) -> None:
    """Keeps the longer recording of a scheduler that is killed and of the one in its place."""
    subprocess.run([sys.executable, *CHAOS, str(path)], check=True)
    old = path.with_name(f"{path.name}.old")
    if old.exists() and old.stat().st_size > path.stat().st_size:
        old.replace(path)


def _record_serving(path: Path) -> None:
    recorded = os.environ | {"SIGNALBOX_RECORDING_PATH": str(path)}
    subprocess.run([sys.executable, *SERVING], env=recorded, check=True)


MAKERS: dict[str, Callable[[Path], None]] = {
    **{name: partial(_record_history, name) for name in SCENARIOS},
    "chaos": _record_chaos,
    "serving": _record_serving,
}


def read_records(path: Path) -> list[pb.Record]:
    return [pb.Record.FromString(data) for data in RecordReader(str(path))]


def write_records(path: Path, records: Iterable[pb.Record]) -> Path:
    writer = RecordWriter(str(path))
    for record in records:
        writer.append(record.SerializeToString())
    writer.close()
    return path


def path_of(name: str) -> Path:
    return FOLDER / f"{name.replace(' ', '_')}.xz"


def unpack(name: str, folder: Path) -> Path:
    """Writes a recording to a folder, as `signalbox replay` reads it."""
    path = folder / name
    path.write_bytes(lzma.decompress(path_of(name).read_bytes()))
    return path


def _pack(name: str, path: Path) -> None:
    path_of(name).write_bytes(lzma.compress(path.read_bytes(), preset=9))


def make_again(name: str, folder: Path) -> None:
    """Makes one recording, and prints whether its plans are those that it had."""
    path, before = folder / f"{name} again", []
    MAKERS[name](path)
    records = read_records(path)[:MOST_RECORDS]
    _change_settings(records, OF_A_RUN)
    write_records(path, records)
    if path_of(name).exists():
        before = [one.step_sent for one in read_records(unpack(name, folder))]
    after = [one.step_sent for one in read_records(path)]
    _pack(name, path)
    size = path_of(name).stat().st_size
    print(f"{name}: {'the same plans' if before == after else 'OTHER PLANS'}, {size:,} bytes")


def change_settings(name: str, names: Mapping[str, str], folder: Path) -> None:
    """Renames settings in a header, or drops them; those that are new get their defaults."""
    records = read_records(unpack(name, folder))
    _change_settings(records, names)
    _pack(name, write_records(folder / f"{name} changed", records))


def _change_settings(records: list[pb.Record], names: Mapping[str, str]) -> None:
    header = records[0].header
    values = json.loads(header.config_json).items()
    kept = {names.get(name, name): value for name, value in values if names.get(name) != ""}
    header.config_json = json.dumps(SchedulerConfig().own_values() | kept)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.scheduler_svc.service.replay.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MAKERS)}")
    parser.add_argument("--settings", nargs="+", metavar="OLD=NEW", help="change headers alone")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - MAKERS.keys()):
        parser.error(f"no recording is called {unknown[0]!r}; there are {', '.join(MAKERS)}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or MAKERS:
            if options.settings:
                names = dict(change.split("=") for change in options.settings)
                change_settings(name, names, Path(folder))
            else:
                make_again(name, Path(folder))


if __name__ == "__main__":
    main()
