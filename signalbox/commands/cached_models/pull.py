"""`signalbox pull`: downloads a model from the hub into its cache, and shows progress."""

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from signalbox.stack.processes.startup_display import log_progress
from signalbox_contract.startup import ReportProgress, StartupProgress
from signalbox_rpc.telemetry import logs
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.hub.download import CONFIG, download, find_on_hub
from signalbox_worker.files.hub.gguf_file_names import format_bytes
from signalbox_worker.files.hub.hub_model import OWN_CODE, HubModel
from signalbox_worker.missing_packages import MissingPackage

EXAMPLES = """\
  signalbox pull org/name                  weights, configuration and tokenizer
  signalbox pull org/name-GGUF:Q4_K_M      one file of several
  signalbox pull org/name org/other        several models
A pull that was interrupted goes on where it ended. The path is printed.
`signalbox doctor MODEL` tells before that what a model takes and how it would run here.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="hub ids: org/name, org/name:Q4_K_M"
    )
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would be fetched, with its bytes, and fetch nothing; `signalbox doctor"
        " MODEL` tells what the model is, and whether it fits in memory",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Downloads missing files and prints each model's path. Raises ModelError, RuntimeError."""
    logs.configure(service="pull", level="info", log_format="text")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    models, revision = options["models"], options["revision"]
    if revision is not None and len(models) > 1:
        raise ModelError("--revision is that of one model; pull the others by themselves")
    for model in models:
        if options["dry_run"]:
            _print_missing(find_on_hub(model, revision))
        else:
            _pull(model, revision)


def _pull(model: str, revision: str | None) -> None:
    with _progress() as progress:
        path = download(model, revision, progress, check=_check)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = format_bytes(sum(file.stat().st_size for file in files))
    print(f"{model} is in the cache, {size}", file=sys.stderr)
    print(path)


def _print_missing(model: HubModel | Path) -> None:
    files = model.missing() if isinstance(model, HubModel) else {}
    for name, size in files.items():
        print(f"{size:>14,}  {name}")
    print(f"{sum(files.values()):>14,}  bytes in all")


def _check(model: HubModel) -> None:
    """Refuses a model that `serve` would refuse with any flags. Raises ModelError."""
    if model.gguf is None and CONFIG not in model.sizes:  # an adapter, or for another program
        return
    from signalbox_worker.runner.loading.opened_model import check_unfetched

    try:
        check_unfetched(ModelConfig(model=model.repository), model)
    except MissingPackage:  # another machine may have it
        return
    except ModelError as error:
        if any(fnmatch(file, OWN_CODE) for file in model.sizes):  # which decides, with a flag
            return
        remedy = f"`hf download {model.repository}` fetches it for other programs"
        raise ModelError(f"{model.repository} is not fetched: {error}; {remedy}") from None


@contextmanager
def _progress() -> Iterator[ReportProgress]:
    """Yields a function that shows progress: as a bar on a terminal, as log lines elsewhere."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield log_progress()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None, visible=False)

        def report(progress: StartupProgress) -> None:
            if progress.num_total:
                bar.update(
                    task, completed=progress.num_done, total=progress.num_total, visible=True
                )

        yield report
