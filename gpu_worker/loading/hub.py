"""Fetches a model from the Hugging Face hub into its local cache, by branch, tag or commit."""

import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_worker.config import ModelError

Progress = Callable[[str], None]
"""Told what a person who waits for a model may want to read."""

_FILES = ["*.json", "*.jinja", "*.py", "tokenizer.model", "merges.txt", "vocab.txt"]
_SAFETENSORS, _TORCH_FILES = "*.safetensors", "pytorch_model*.bin"
_DUPLICATES = ["consolidated*", "original/*", "onnx/*"]
"""The same weights again, in other layouts."""
_INTERVAL_S = 5.0


def download(
    model: str, revision: str | None, progress: Progress, *, with_weights: bool = True
) -> Path:
    """Returns the local directory of a hub model."""
    progress(f"fetching {model} from the hub" + (f", revision {revision}" if revision else ""))
    patterns = [*_FILES, _SAFETENSORS] if with_weights else _FILES
    path = _snapshot(model, revision, patterns, progress)
    if with_weights and not any(path.glob(_SAFETENSORS)):  # as older models are kept
        path = _snapshot(model, revision, [*_FILES, _TORCH_FILES], progress)
    return path


def _snapshot(model: str, revision: str | None, patterns: list[str], progress: Progress) -> Path:
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
                tqdm_class=_bar_class(model, progress),
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


def _bar_class(model: str, progress: Progress) -> type[Any]:
    """Makes the hub's progress bars lines of ours, one every few seconds."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    lock = threading.Lock()
    next_line = time.monotonic() + _INTERVAL_S

    def tell(line: str, *, is_last: bool) -> None:
        nonlocal next_line
        with lock:  # files are fetched by several threads
            if is_last or time.monotonic() >= next_line:
                next_line = time.monotonic() + _INTERVAL_S
                progress(line)

    class Bar(tqdm):  # type: ignore[misc]
        """Draws nothing; counts files or bytes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._is_bytes = kwargs.get("unit") == "B"
            known = {k: v for k, v in kwargs.items() if k != "name"}
            super().__init__(*args, **(known | {"file": io.StringIO(), "disable": False}))

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if self._is_bytes:
                tell(f"fetching {model}: {_mib(self.n)} of {_mib(self.total)} MiB", is_last=False)
            else:
                is_last = self.n == self.total
                tell(f"fetched {self.n} of {self.total} files of {model}", is_last=is_last)
            return shown

    return Bar


def _mib(num_bytes: float | None) -> int:
    return int(num_bytes or 0) >> 20
