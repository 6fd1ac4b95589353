"""Fetches a model from the Hugging Face hub into its local cache, by branch, tag or commit."""

import errno
import io
import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from gpu_worker.config import ModelError
from rpc.startup import ReportProgress, StartupPhase, StartupProgress, ignore_progress

logger = logging.getLogger(__name__)

_FILES = ["*.json", "*.jinja", "*.py", "tokenizer.model", "merges.txt", "vocab.txt"]
_SAFETENSORS, _TORCH_FILES = "*.safetensors", "pytorch_model*.bin"
_DUPLICATES = ["consolidated*", "original/*", "onnx/*"]
"""The same weights again, in other layouts."""
_INTERVAL_S = 0.25


def download(
    model: str, revision: str | None, progress: ReportProgress, *, with_weights: bool = True
) -> Path:
    """Returns the local directory of a hub model."""
    logger.info("fetching %s from the hub%s", model, f", revision {revision}" if revision else "")
    progress(StartupProgress(StartupPhase.FETCH))
    patterns = [*_FILES, _SAFETENSORS] if with_weights else _FILES
    path = _snapshot(model, revision, patterns, progress)
    if with_weights and not any(path.glob(_SAFETENSORS)):  # as older models are kept
        path = _snapshot(model, revision, [*_FILES, _TORCH_FILES], progress)
    return path


def _snapshot(
    model: str, revision: str | None, patterns: list[str], progress: ReportProgress
) -> Path:
    """Fetches the files that match and are not cached."""
    import huggingface_hub as hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    _check_disk(model, revision, patterns)
    try:
        return Path(
            hub.snapshot_download(
                model,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=_DUPLICATES,
                tqdm_class=_bar_class(progress),
            )
        )
    except GatedRepoError:
        reason = "access is gated; accept its terms and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "there is no such model, or it is private; check the name or set HF_TOKEN"
    except RevisionNotFoundError:
        reason = f"it has no revision {revision!r}"
    except LocalEntryNotFoundError:
        reason = "the hub cannot be reached and no copy is cached; give a local directory"
    except (HfHubHTTPError, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise _disk_full(model) from None
        lines = str(error).splitlines() or [type(error).__name__]
        reason = f"{lines[0]}; check the network, or give a local directory"
    raise ModelError(f"cannot fetch {model} from the hub: {reason}")


def _check_disk(model: str, revision: str | None, patterns: list[str]) -> None:
    """Raises ModelError unless the files that are not cached fit on the disk."""
    import huggingface_hub as hub
    from huggingface_hub.errors import DryRunError, HfHubHTTPError

    try:
        files = hub.snapshot_download(
            model,
            revision=revision,
            allow_patterns=patterns,
            ignore_patterns=_DUPLICATES,
            dry_run=True,
            tqdm_class=_bar_class(ignore_progress),
        )
    except (DryRunError, HfHubHTTPError, OSError, ValueError):
        return  # fetching says what is wrong, unless all is cached
    needed = sum(file.file_size or 0 for file in files if file.will_download)
    if needed > shutil.disk_usage(_cache()).free:
        raise _disk_full(model, needed)


def _cache() -> Path:
    """The hub's cache, or the folder that it will be made in."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    return next(folder for folder in (cache, *cache.parents) if folder.is_dir())


def _disk_full(model: str, needed: int | None = None) -> ModelError:
    cache = _cache()
    takes = "" if needed is None else f"it takes {_mib(needed)} MiB, and "
    return ModelError(
        f"cannot fetch {model} from the hub: {takes}{_mib(shutil.disk_usage(cache).free)} MiB are"
        f" free in {cache}; free some, or set HF_HOME to a folder on another disk"
    )


def _mib(num_bytes: int) -> int:
    return num_bytes >> 20


def _bar_class(progress: ReportProgress) -> type[Any]:
    """Returns a class of progress bars that reports the bytes fetched instead of drawing them."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    lock = threading.Lock()
    next_report = 0.0

    def report(done: float, total: float | None) -> None:
        nonlocal next_report
        with lock:  # files are fetched by several threads
            if (now := time.monotonic()) < next_report:
                return
            next_report = now + _INTERVAL_S
        num_total = int(total or 0)
        progress(StartupProgress(StartupPhase.FETCH, min(int(done), num_total), num_total))

    class Bar(tqdm):  # type: ignore[misc]
        """Draws nothing; counts bytes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._is_bytes = kwargs.get("unit") == "B"
            known = {k: v for k, v in kwargs.items() if k != "name"}
            super().__init__(*args, **(known | {"file": io.StringIO(), "disable": False}))

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if self._is_bytes:
                report(self.n, self.total)
            return shown

    return Bar
