"""A model on the hub: which of a repository's files it takes, and how much of them is fetched."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from signalbox_contract.startup import ReportProgress
from signalbox_worker.files.hub.file_transfer import fetch, missing_files, read_start
from signalbox_worker.files.hub.weight_file_names import DUPLICATES

OWN_CODE, CARD = "*.py", "README.md"
TEXTS = ("*.json", "*.jinja", OWN_CODE, "*.model", "merges.txt", "vocab.txt", CARD)
"""Patterns of a model's files beside its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model whose files may be in the cache or not."""

    repository: str
    """org/name."""
    revision: str | None
    sizes: Mapping[str, int]
    """Bytes of each file of the repository."""
    weights: tuple[str, ...]
    """Patterns of the files of weights; the only files, if they are in GGUF."""
    gguf: str | None = None
    """The GGUF file, or the first of its parts."""

    @property
    def name(self) -> str:
        """The last part of the repository's name."""
        return self.repository.rpartition("/")[2]

    def weight_files(self) -> dict[str, int]:
        """Returns the bytes of each file of weights."""
        return {file: size for file, size in self.sizes.items() if self._is_weights(file)}

    def fetch(self, progress: ReportProgress, check: "Check") -> Path:
        """Fetches what is missing; returns the folder, or the first GGUF file.

        Args:
            check: called before files of weights are fetched, if one is missing.
        """

        def before(missing: list[str]) -> None:
            if any(map(self._is_weights, missing)):
                check(self)

        folder = fetch(self.repository, self.revision, self._patterns, progress, before=before)
        return folder if self.gguf is None else folder / self.gguf

    def fetch_texts(self, progress: ReportProgress) -> Path:
        """Fetches all but the weights of a model in Hugging Face's layout; returns the folder."""
        return fetch(self.repository, self.revision, self._texts, progress)

    def read_start(self, file: str, count: int, *, skipped: int = 0) -> bytes:
        """Returns the first bytes of a file, or those behind `skipped` of them, by a range."""
        return read_start(self.repository, self.revision, file, count, skipped=skipped)

    def missing(self) -> dict[str, int]:
        """Returns the bytes of each file that `fetch` would fetch."""
        return missing_files(self.repository, self.revision, self._patterns)

    @property
    def _patterns(self) -> tuple[str, ...]:
        return (*self._texts, *self.weights)

    @property
    def _texts(self) -> tuple[str, ...]:
        return TEXTS if self.gguf is None else ()

    def _is_weights(self, file: str) -> bool:
        is_double = any(fnmatch(file, pattern) for pattern in DUPLICATES)
        return not is_double and any(fnmatch(file, pattern) for pattern in self.weights)


Check = Callable[[HubModel], None]
"""Raises ModelError for a model that is not to be fetched."""


def fetch_any(_: HubModel) -> None:
    """Refuses no model."""
