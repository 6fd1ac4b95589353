"""Verdicts of earlier starts, in the folder of compiled kernels.

A verdict is a file, `trials/<digest>.json`, named by all that it depends on: the card, the driver,
versions, our sources, and what was tried. The file states all of that; deleting it repeats the
trial. Faults are kept too, unless they may come of what is around. The files decide what a worker
runs, so one that another user could have written is not read.
"""

import contextlib
import hashlib
import json
import logging
import os
import platform
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from signalbox_kernels import build
from signalbox_kernels.build import only_builder
from signalbox_kernels.own_folder import UnusableFolder
from signalbox_kernels.triton.kernel_cache import usable_folder
from signalbox_worker.device.trials.trial import Trial, Verdict
from signalbox_worker.device.trials.trial_runner import run_trials

logger = logging.getLogger(__name__)

_PACKAGES = (
    *("torch", "triton", "flash-attn", "flash-attn-3", "flash-attn-4", "nvidia-cutlass-dsl"),
    *("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),
)
_DRIVER = Path("/proc/driver/nvidia/version")
_SOURCES = (Path(__file__).parents[2], Path(build.__file__).parent)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def verdicts_of(trials: Sequence[Trial], device: torch.device) -> list[Verdict]:
    """Returns the verdicts that are kept, and makes the other trials.

    Of workers that start together one tries, and the others wait and read.
    """
    if not trials:
        return []
    with _folder() as folder:
        subjects = [_subject(trial, device) for trial in trials]
        found = [_read(folder, subject) for subject in subjects]
        made = iter(run_trials([trials[i] for i, one in enumerate(found) if one is None], device))
        verdicts = []
        for trial, subject, kept in zip(trials, subjects, found, strict=True):
            verdict = kept or next(made)
            if kept is None:
                _write(folder, subject, verdict)
            if verdict.fault is not None and verdict.is_lasting and folder is not None:
                logger.error(
                    "the fault of %s is kept and is not tried again: %s; delete %s to try again",
                    trial.name,
                    verdict.fault,
                    _path(folder, subject),
                )
            verdicts.append(verdict)
    return verdicts


@contextlib.contextmanager
def _folder() -> Iterator[Path | None]:
    """Yields the folder while no other process has it; None if nothing can be kept."""
    with contextlib.ExitStack() as stack:
        try:
            folder = usable_folder(None) / "trials"
            stack.enter_context(only_builder(folder))
        except (UnusableFolder, OSError) as error:
            logger.warning("verdicts of trials are not kept: %s", error)
            folder = None
        yield folder


def _subject(trial: Trial, device: torch.device) -> dict[str, Any]:
    """Returns all that a verdict depends on, as a file gives it back."""
    tried = {"function": trial.function, "arguments": dict(trial.arguments)}
    subject: dict[str, Any] = json.loads(json.dumps(tried | _around(device)))
    return subject


@cache
def _around(device: torch.device) -> dict[str, Any]:
    around: dict[str, Any] = {"device": device.type, "sources": _digest_of_sources()}
    around["python"] = platform.python_version()
    around |= {package: _version(package) for package in _PACKAGES}
    if device.type == "cuda":
        around["card"] = torch.cuda.get_device_name(device)
        around["capability"] = list(torch.cuda.get_device_capability(device))
        around["cuda"] = torch.version.cuda
        around["driver"] = _driver()
    return around


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    try:
        return _DRIVER.read_text().partition("\n")[0]
    except OSError:
        return None


def _digest_of_sources() -> str:
    """Returns a digest of our Python code that may run in a trial, of any version."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _path(folder: Path, subject: dict[str, Any]) -> Path:
    text = json.dumps(subject, sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _read(folder: Path | None, subject: dict[str, Any]) -> Verdict | None:
    if folder is None:
        return None
    path = _path(folder, subject)
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
                raise ValueError("another user can write it")
            content = json.load(file)
        if content["subject"] != subject:
            raise ValueError("it is about something else")
        return Verdict(**content["verdict"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("%s is not used, and the trial is repeated: %s", path, error)
        return None


def _write(folder: Path | None, subject: dict[str, Any], verdict: Verdict) -> None:
    if folder is None or not verdict.is_lasting:
        return
    path = _path(folder, subject)
    text = json.dumps({"subject": subject, "verdict": asdict(verdict)}, indent=1)
    try:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            draft = Path(scratch, path.name)
            draft.touch(mode=0o600)
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
    except OSError as error:
        logger.warning("the verdict of a trial is not kept: %s", error)
