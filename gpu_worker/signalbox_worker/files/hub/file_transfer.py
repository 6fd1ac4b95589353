"""Moves files of a repository from the hub into its cache: disk space, progress, resumption.

huggingface_hub sends the requests and lays out the cache. It discards what it has of a file when a
download ends early, with hf-xet too, so large files are fetched here into `blobs/ETAG.incomplete`,
with its own function for HTTP ranges, and get their final name when they are whole; it then finds
them.
"""

import fcntl
import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

from signalbox_contract.startup import (
    ReportProgress,
    StartupPhase,
    StartupProgress,
    ignore_progress,
)
from signalbox_worker.config import ModelError
from signalbox_worker.files.hub.weight_file_names import DUPLICATES

RESUMABLE_BYTES = 1 << 20
"""Least bytes of a file whose download is resumed; smaller files are fetched again."""
_PARTIAL_CONTENT = 206
_INTERVAL_S = 0.25
_MAX_CONNECTIONS = 4


def fetch(
    repository: str,
    revision: str | None,
    patterns: Sequence[str],
    progress: ReportProgress,
    *,
    before: Callable[[list[str]], None] = lambda _: None,
) -> Path:
    """Fetches the files that match and are not cached; returns the snapshot's folder.

    Args:
        before: called with the names of the files that are missing, before any is fetched.

    Raises ModelError if the disk cannot hold them, and what huggingface_hub raises.
    """
    import huggingface_hub as hub

    snapshot = _snapshot(repository, revision, patterns)
    missing = _missing(snapshot)
    before([file.filename for file in missing])
    large = [file for file in missing if (file.file_size or 0) >= RESUMABLE_BYTES]
    limit = hub.constants.MAX_HTTP_DOWNLOAD_SIZE
    partials = [_Partial(repository, file) for file in large if file.file_size <= limit]
    needed = sum(file.file_size or 0 for file in missing) - sum(one.num_bytes for one in partials)
    check_disk(repository, needed)
    is_rest_small = _complete(partials, progress) == len(large)
    shown = ignore_progress if partials and is_rest_small else progress
    return Path(snapshot(tqdm_class=_bar_class(shown)))


def missing_files(repository: str, revision: str | None, patterns: Sequence[str]) -> dict[str, int]:
    """Returns the bytes of each file that matches and is not cached."""
    missing = _missing(_snapshot(repository, revision, patterns))
    return {file.filename: file.file_size or 0 for file in missing}


def read_start(
    repository: str, revision: str | None, file: str, count: int, *, skipped: int = 0
) -> bytes:
    """Returns the first bytes of a file, or those behind `skipped` of them, without the rest.

    Raises what huggingface_hub raises, and OSError for a hub that sends the whole file.
    """
    import huggingface_hub as hub
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
        http_stream_backoff,
    )

    url = hub.hf_hub_url(repository, file, revision=revision)
    # What is compressed on the way has other ranges.
    asked = {"Range": f"bytes={skipped}-{skipped + count - 1}", "Accept-Encoding": "identity"}
    timeout = hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
    headers = build_hf_headers() | asked
    with http_stream_backoff("GET", url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        if response.status_code != _PARTIAL_CONTENT:
            raise OSError(f"the hub sends no part of {file}")
        return b"".join(response.iter_bytes())[:count]


def cache_folder() -> Path:
    """Returns the folder of the hub's cache, which may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def check_disk(repository: str, needed: int) -> None:
    """Raises ModelError if the cache's disk cannot hold so many bytes more."""
    if needed > shutil.disk_usage(_existing(cache_folder())).free:
        raise disk_full(repository, needed)


def disk_full(repository: str, needed: int | None = None) -> ModelError:
    """Says that a repository does not fit on the disk, and how many bytes it takes if known."""
    cache = _existing(cache_folder())
    takes = "" if needed is None else f"it takes {_mib(needed)} MiB, and "
    return ModelError(
        f"cannot fetch {repository} from the hub: {takes}{_mib(shutil.disk_usage(cache).free)} MiB"
        f" are free in {cache}; free some, or set HF_HOME to a folder on another disk"
    )


def _snapshot(repository: str, revision: str | None, patterns: Sequence[str]) -> Callable[..., Any]:
    """Returns the function of huggingface_hub's that lays out the files in the cache."""
    import huggingface_hub as hub

    return partial(
        hub.snapshot_download,
        repository,
        revision=revision,
        allow_patterns=list(patterns),
        ignore_patterns=list(DUPLICATES),
    )


def _missing(snapshot: Callable[..., Any]) -> list[Any]:
    """Returns huggingface_hub's DryRunFileInfo of each file that is not cached."""
    try:
        files = snapshot(dry_run=True, tqdm_class=_bar_class(ignore_progress))
    except Exception:
        return []  # the fetch that follows says what is wrong, unless all is cached
    return [file for file in files if file.will_download]


def _complete(partials: list["_Partial"], progress: ReportProgress) -> int:
    """Fetches the rest of the files; returns how many are whole then."""
    total = _Total(sum(one.size for one in partials), progress)
    pool = ThreadPoolExecutor(_MAX_CONNECTIONS, "fetch")
    try:
        return sum(pool.map(lambda one: one.complete(total), partials))
    finally:  # the other files are not waited for if one fails, or on Ctrl-C
        total.is_ended = True
        pool.shutdown(wait=False, cancel_futures=True)


class _Partial:
    """A file of a repository that may be fetched in part."""

    def __init__(self, repository: str, file: Any) -> None:
        """Takes huggingface_hub's DryRunFileInfo of the file."""
        import huggingface_hub as hub

        self._url = hub.hf_hub_url(repository, file.filename, revision=file.commit_hash)
        metadata = hub.get_hf_file_metadata(self._url)
        if metadata.etag is None or metadata.size is None:
            raise OSError(f"the hub gives no ETag or no size for {file.filename}")
        self.size: int = metadata.size
        folder = cache_folder() / f"models--{repository.replace('/', '--')}" / "blobs"
        self._blob = folder / metadata.etag
        self._path = folder / f"{metadata.etag}.incomplete"

    @property
    def num_bytes(self) -> int:
        """Returns the bytes that are on disk already."""
        return min(self._path.stat().st_size, self.size) if self._path.is_file() else 0

    def complete(self, total: "_Total") -> bool:
        """Fetches the rest; returns False, having done nothing, if another process does."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not _is_at(self._path, file):  # another process completed it before the lock was had
                total.update(self.size)
                return True
            self._fetch_rest(file, total)
            self._path.replace(self._blob)
        return True

    def _fetch_rest(self, file: BinaryIO, total: "_Total") -> None:
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        have = os.fstat(file.fileno()).st_size
        if have > self.size:
            file.truncate(have := 0)
        if have == self.size:
            total.update(have)
            return
        http_get(
            self._url,
            file,
            resume_size=have,
            headers=build_hf_headers(),
            expected_size=self.size,
            tqdm_class=total.bar,  # type: ignore[arg-type]
        )


class _Total:
    """Counts the bytes of several files, fetched by several threads."""

    def __init__(self, num_bytes: int, progress: ReportProgress) -> None:
        self._num_bytes = num_bytes
        self._report = _throttled(progress)
        self._num_done = 0
        self._lock = threading.Lock()
        self.is_ended = False
        """True ends each thread that fetches, at its next bytes."""

    def bar(self, *_: Any, initial: int = 0, **__: Any) -> AbstractContextManager[Self]:
        """Returns what huggingface_hub takes for the progress bar of one file."""
        self.update(initial)
        return nullcontext(self)

    def update(self, count: float | None = 1) -> None:
        if self.is_ended:
            raise InterruptedError("the download has ended")
        with self._lock:
            self._num_done += int(count or 0)
            num_done = self._num_done
        self._report(num_done, self._num_bytes)


def _bar_class(progress: ReportProgress) -> type[Any]:
    """Returns a class of progress bars that reports the bytes fetched instead of drawing them."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    report = _throttled(progress)

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


def _throttled(progress: ReportProgress) -> Callable[[float, float | None], None]:
    """Returns a function that reports bytes and total, some times a second and at the end."""
    lock = threading.Lock()
    next_report = 0.0

    def report(done: float, total: float | None) -> None:
        nonlocal next_report
        num_total = int(total or 0)
        num_done = max(0, min(int(done), num_total))
        with lock:  # files are fetched by several threads
            if (now := time.monotonic()) < next_report and num_done < num_total:
                return
            next_report = now + _INTERVAL_S
        progress(StartupProgress(StartupPhase.FETCH, num_done, num_total))

    return report


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _existing(folder: Path) -> Path:
    """Returns the folder, or the nearest one above it that exists."""
    return next(one for one in (folder, *folder.parents) if one.is_dir())


def _mib(num_bytes: int) -> int:
    return num_bytes >> 20
