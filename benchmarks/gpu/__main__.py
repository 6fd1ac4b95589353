"""Checks and measures everything that only a GPU can show, and writes one table.

    python -m benchmarks.gpu [--parts probes roofline ...] [--out benchmarks/comparison/results]

Each part is a process of its own, with a time limit: one that fails, hangs or breaks the device is
in the table with the reason, and the next one runs. All of it takes at most nine minutes.
`--device cpu --tiny` shows that the program itself works, in a minute; its figures mean nothing.
"""

import argparse
import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import PartResult, from_json, markdown, to_json, write
from benchmarks.gpu.parts import PARTS

TOTAL_S = 520.0
_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / "benchmarks" / "results"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "none"
    if device == "none" or (device == "cuda" and not torch.cuda.is_available()):
        print(
            f"PyTorch {torch.__version__} finds no CUDA device; run this where one is, with a "
            "PyTorch built for CUDA, or see that it works with --device cpu --tiny",
            file=sys.stderr,
        )
        return 2
    if options.part_result is not None:
        return _run_here(options.parts[0], device, tiny=options.tiny, file=options.part_result)
    results = _run_all(options.parts, device, tiny=options.tiny)
    write(results, _machine(device), options.out)
    print(markdown(results, _machine(device)))
    return 1 if any(result.failure for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--tiny", action="store_true", help="every size shrunk, to see it work")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, default=_RESULTS, help="for gpu.json and gpu.md")
    parser.add_argument("--part-result", type=Path, help=argparse.SUPPRESS)  # of one part, here
    return parser


def _run_all(names: list[str], device: str, *, tiny: bool) -> list[PartResult]:
    results, end = [], time.monotonic() + TOTAL_S
    for name in names:
        limit_s = min(PARTS[name].limit_s, end - time.monotonic())
        result = _run_apart(name, device, tiny=tiny, limit_s=limit_s)
        print(f"{name}: {result.failure or 'done'} ({result.seconds:.0f} s)", flush=True)
        results.append(result)
    return results


def _run_apart(name: str, device: str, *, tiny: bool, limit_s: float) -> PartResult:
    """Runs a part as a process, so that nothing that it does to the device outlasts it."""
    if limit_s < 5:
        return PartResult(name=name, measures=[], failure="no time is left")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.gpu", "--device", device, "--parts", name]
        command += ["--part-result", str(file)] + ["--tiny"] * tiny
        start = time.monotonic()
        failure = _run_process(command, limit_s=limit_s)
        seconds = time.monotonic() - start
        if not file.exists():
            return PartResult(name=name, measures=[], seconds=seconds, failure=failure)
        result = from_json(file.read_text(encoding="utf-8"))
    result.seconds = seconds
    return result


def _run_process(command: list[str], *, limit_s: float) -> str:
    """Runs a command, and ends all that it has started; returns what went wrong, if anything."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, cwd=_ROOT
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"not done within {limit_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        return _last_line(errors.read()) or f"exit status {status}"


def _run_here(name: str, device: str, *, tiny: bool, file: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(device=torch.device(device), tiny=tiny, folder=Path(folder))
        measures = PARTS[name].measure(bench)
    file.write_text(to_json(PartResult(name=name, measures=measures)), encoding="utf-8")
    return 0


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _machine(device: str) -> dict[str, str]:
    known = {"PyTorch": torch.__version__, "Python": platform.python_version()}
    if device != "cuda":
        return {"device": "a CPU: the figures mean nothing"} | known
    properties = torch.cuda.get_device_properties(0)
    memory = f"{properties.total_memory / (1 << 30):.0f} GiB"
    return {"device": f"{properties.name} ({memory})", "CUDA": str(torch.version.cuda)} | known


if __name__ == "__main__":
    sys.exit(main())
