"""Checks and measures everything that only a GPU can show, and writes one table.

    python -m benchmarks.gpu [--parts probes steps ...] [--out benchmarks/results]

Each part is a process of its own, with a time limit: one that fails, hangs or breaks the device is
in the table with the reason, and the next one runs. The table is written anew after each part, with
all that the parts printed beside it. The card's own rates are measured in every run. All of the
default parts take at most nine minutes. `--device cpu --tiny` shows that the program itself works;
its figures mean nothing.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import card
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import PartResult, markdown, to_json, write
from benchmarks.gpu.part_list import DEFAULT_PARTS, PARTS, ROOFLINE
from benchmarks.gpu.part_process import run_part

TOTAL_S = 520.0
_RESULTS = Path(__file__).parents[1] / "results"


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
    options.device = device
    if options.part_result is not None:
        return _run_here(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a part ends with this
    results = _run_all(options)
    print(markdown(results, card.machine(device)))
    return 1 if any(result.failure for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--tiny", action="store_true", help="every size shrunk, to see it work")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(DEFAULT_PARTS))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="setting of the workers, such as attention_backend=flash_attn; may be repeated",
    )
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="for all parts together (default 520)"
    )
    parser.add_argument("--out", type=Path, default=_RESULTS, help="for gpu.json and gpu.md")
    parser.add_argument("--part-result", type=Path, help=argparse.SUPPRESS)  # of one part, here
    return parser


def _setting(text: str) -> tuple[str, Any]:
    """Returns name and value; a value that is JSON, such as true or 0.5, is what that means."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _run_all(options: argparse.Namespace) -> list[PartResult]:
    """Runs the parts, the card's own rates first; a limit gives each its share, if that is more."""
    names = [ROOFLINE, *(name for name in options.parts if name != ROOFLINE)]
    results, end = list[PartResult](), time.monotonic() + (options.limit or TOTAL_S)
    options.out.mkdir(parents=True, exist_ok=True)
    for num_done, name in enumerate(names):
        left_s = end - time.monotonic()
        share_s = left_s / (len(names) - num_done) if options.limit else 0.0
        result = run_part(
            name,
            [f"--device={options.device}", *(["--tiny"] if options.tiny else [])]
            + [f"--set={key}={json.dumps(value)}" for key, value in options.set],
            environment=PARTS[name].environment,
            limit_s=min(left_s, max(PARTS[name].limit_s, share_s)),
            log=options.out / f"gpu-{name}.log",
        )
        print(f"{name}: {result.failure or 'done'} ({result.seconds:.0f} s)", flush=True)
        results.append(result)
        write(results, card.machine(options.device), options.out)
    return results


def _run_here(options: argparse.Namespace) -> int:
    part = PARTS[options.parts[0]]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            device=torch.device(options.device),
            tiny=options.tiny,
            folder=Path(folder),
            settings={**part.settings, **dict(options.set)},
        )
        measures = part.measurement()(bench)
    result = PartResult(name=options.parts[0], measures=measures, card=card.state(options.device))
    options.part_result.write_text(to_json(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
