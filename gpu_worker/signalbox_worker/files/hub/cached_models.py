"""Models in the hub's cache: what is there, how large it is, and how it is removed.

The cache is huggingface_hub's, and other programs use it too.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from signalbox_worker.config import ModelError
from signalbox_worker.files.hub.file_transfer import cache_folder
from signalbox_worker.files.hub.gguf_file_names import choose_variant, find_variants
from signalbox_worker.files.hub.model_name import parse_hub_name

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, HFCacheInfo

_MODEL_FOLDER = "models--"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model under the name that `serve` takes."""

    name: str
    """org/name, with :TAG for a GGUF model."""
    num_bytes: int
    """Bytes on disk."""
    modified_at: float
    """Seconds since the epoch, when the newest of its files was fetched."""
    is_whole: bool
    """False if the download ended early."""


def cached_models() -> list[CachedModel]:
    """Returns the models in the cache, by name."""
    if not cache_folder().is_dir():
        return []
    cache = _scan()
    found = [model for repository in _repositories(cache) for model in _models(repository)]
    found += _incomplete_models(cache)
    return sorted(found, key=lambda model: (model.name.lower(), not model.is_whole))


def remove(model: str) -> int:
    """Removes a model, or one GGUF model of a repository, and what is left of downloads of it.

    Returns the bytes that are free now. Raises ModelError if the cache has no such model.
    """
    name = parse_hub_name(model)
    if name is None:
        raise ModelError(f"{model} is no hub id; give one of `signalbox list`")
    folder = cache_folder() / (_MODEL_FOLDER + name.repository.replace("/", "--"))
    if not folder.is_dir():
        raise ModelError(f"{name.repository} is not in the cache; see `signalbox list`")
    repository = next((one for one in _repositories(_scan()) if one.repo_path == folder), None)
    files = [] if repository is None else _files(repository)
    if name.tag is not None:
        sizes = {path: file.size_on_disk for path, file in files}
        variants = find_variants(sizes)
        chosen = choose_variant(name.repository, variants, name.tag)
        if len(variants) > 1:
            return _remove_files([file for path, file in files if path in chosen.files])
    num_bytes = sum(blob.stat().st_size for blob in folder.glob("blobs/*") if blob.is_file())
    shutil.rmtree(folder)
    return num_bytes


def _remove_files(files: list["CachedFileInfo"]) -> int:
    strategy = _scan().delete_files(*files)
    strategy.execute()
    return strategy.expected_freed_size


def _scan() -> "HFCacheInfo":
    from huggingface_hub import scan_cache_dir

    return scan_cache_dir(cache_folder())


def _repositories(cache: "HFCacheInfo") -> Iterable["CachedRepoInfo"]:
    return (repository for repository in cache.repos if repository.repo_type == "model")


def _files(repository: "CachedRepoInfo") -> list[tuple[str, "CachedFileInfo"]]:
    """Path in the repository, and file, of every revision."""
    return [
        (file.file_path.relative_to(revision.snapshot_path).as_posix(), file)
        for revision in repository.revisions
        for file in revision.files
    ]


def _models(repository: "CachedRepoInfo") -> list[CachedModel]:
    """Returns the GGUF models of a repository, and the one in Hugging Face's layout."""
    blobs = {file.blob_path: (path, file) for path, file in _files(repository)}
    groups: dict[str, list[CachedFileInfo]] = {}
    tags = {
        path: f":{variant.label}"
        for variant in find_variants({path: file.size_on_disk for path, file in blobs.values()})
        for path in variant.files
    }
    for path, file in blobs.values():
        groups.setdefault(tags.get(path, ""), []).append(file)
    if tags and "" in groups and not any(_is_weights(file.file_name) for file in groups[""]):
        del groups[""]  # a configuration beside GGUF files is no model
    return [
        CachedModel(
            name=repository.repo_id + tag,
            num_bytes=sum(file.size_on_disk for file in files),
            modified_at=max(file.blob_last_modified for file in files),
            is_whole=bool(tag) or any(_is_weights(file.file_name) for file in files),
        )
        for tag, files in groups.items()
    ]


def _is_weights(name: str) -> bool:
    return PurePosixPath(name).suffix in (".safetensors", ".bin")


def _incomplete_models(cache: "HFCacheInfo") -> list[CachedModel]:
    folders: dict[Path, list[Path]] = {}
    for file in cache.incomplete_files:
        folders.setdefault(file.file_path.parent.parent, []).append(file.file_path)
    return [
        CachedModel(
            name=folder.name.removeprefix(_MODEL_FOLDER).replace("--", "/"),
            num_bytes=sum(file.stat().st_size for file in files),
            modified_at=max(file.stat().st_mtime for file in files),
            is_whole=False,
        )
        for folder, files in folders.items()
        if folder.name.startswith(_MODEL_FOLDER)
    ]
