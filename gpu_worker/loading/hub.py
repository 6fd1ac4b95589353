"""Fetches a model from the Hugging Face hub into its local cache, by branch, tag or commit."""

import io
import logging
import threading
import time
from pathlib import Path
from typing import Any

from gpu_worker.config import ModelError
from rpc.startup import ReportProgress, StartupPhase, StartupProgress

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
        lines = str(error).splitlines() or [type(error).__name__]
        reason = f"{lines[0]}; check the network, or give a local directory"
    raise ModelError(f"cannot fetch {model} from the hub: {reason}")


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
