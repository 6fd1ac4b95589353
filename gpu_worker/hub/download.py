"""Fetches a model from the Hugging Face hub into its local cache, by branch, tag or commit.

huggingface_hub reads HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME and the rest of its variables.
Of a repository of GGUF files only the model that is meant is fetched.
"""

import errno
import glob
import logging
from fnmatch import fnmatch
from pathlib import Path

from contract.startup import ReportProgress, StartupPhase, StartupProgress
from gpu_worker.config import ModelError
from gpu_worker.hub.file_transfer import DUPLICATES, disk_full, fetch
from gpu_worker.hub.gguf_file_names import (
    PREFERRED,
    GGUFVariant,
    check_parts,
    choose_variant,
    describe,
    find_variants,
    format_bytes,
)
from gpu_worker.hub.model_name import HubName, parse_hub_name

logger = logging.getLogger(__name__)

_FILES = ("*.json", "*.jinja", "*.py", "tokenizer.model", "merges.txt", "vocab.txt")
_SAFETENSORS, _TORCH_FILES = "*.safetensors", "pytorch_model*.bin"


def download(
    model: str, revision: str | None, progress: ReportProgress, *, with_weights: bool = True
) -> Path:
    """Returns the local directory of a hub model, or the first file of one in GGUF.

    Raises ModelError, in one line, for what cannot be had.
    """
    name = parse_hub_name(model)
    if name is None:
        raise ModelError(f"{model} is no hub id; give org/name or org/name:Q4_K_M")
    logger.info("fetching %s from the hub%s", name, f", revision {revision}" if revision else "")
    progress(StartupProgress(StartupPhase.FETCH))
    try:
        return _download(name, revision, progress, with_weights=with_weights)
    except ModelError:
        raise
    except Exception as error:  # also those of the HTTP library, which differ between versions
        raise _in_one_line(name, revision, error) from error


def _download(
    name: HubName, revision: str | None, progress: ReportProgress, *, with_weights: bool
) -> Path:
    files = _list_files(name.repository, revision)
    variant = _choose_gguf(name, files) if with_weights else None
    if variant is not None:
        patterns = [glob.escape(file) for file in variant.files]
        return fetch(name.repository, revision, patterns, progress) / variant.files[0]
    if name.tag is not None:
        raise ModelError(f"{name.repository} has no GGUF files; leave out :{name.tag}")
    weights = [_SAFETENSORS] if _has(files, _SAFETENSORS) else [_TORCH_FILES]
    patterns = [*_FILES, *(weights if with_weights else ())]
    return fetch(name.repository, revision, patterns, progress)


def _choose_gguf(name: HubName, files: dict[str, int]) -> GGUFVariant | None:
    """Returns None for a repository in Hugging Face's layout, unless a tag asks for a GGUF."""
    if name.tag is None and (_has(files, _SAFETENSORS) or _has(files, _TORCH_FILES)):
        return None
    variants = find_variants(files)
    if not variants:
        return None
    chosen = choose_variant(name.repository, variants, name.tag)
    check_parts(name.repository, chosen)
    if name.tag is None and len(variants) > 1:
        why = "" if chosen.label == PREFERRED else f", the nearest in size to {PREFERRED}"
        logger.warning(
            "%s: taking %s%s; name another as %s:TAG: %s",
            name.repository,
            f"{chosen.files[0]} ({format_bytes(chosen.num_bytes)})",
            why,
            name.repository,
            describe([one for one in variants if one is not chosen]),
        )
    return chosen


def _has(files: dict[str, int], pattern: str) -> bool:
    return any(
        fnmatch(file, pattern) and not any(fnmatch(file, other) for other in DUPLICATES)
        for file in files
    )


def _list_files(repository: str, revision: str | None) -> dict[str, int]:
    """Returns path and size of each file; of those in the cache, if the hub does not answer."""
    import huggingface_hub as hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        entries = list(hub.HfApi().list_repo_tree(repository, recursive=True, revision=revision))
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:
        logger.info("the hub does not answer (%s); looking into the cache", type(error).__name__)
        try:
            return _list_cached(repository, revision)
        except LocalEntryNotFoundError:
            if isinstance(error, HfHubHTTPError):
                raise error from None
            raise
    return {entry.path: entry.size for entry in entries if isinstance(entry, hub.RepoFile)}


def _list_cached(repository: str, revision: str | None) -> dict[str, int]:
    """Raises LocalEntryNotFoundError for a revision of which nothing is cached."""
    import huggingface_hub as hub

    folder = Path(
        hub.snapshot_download(
            repository, revision=revision, local_files_only=True, allow_patterns=[]
        )
    )
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}


def _in_one_line(name: HubName, revision: str | None, error: Exception) -> ModelError:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case GatedRepoError():
            reason = "access is gated; accept its terms on the hub and set HF_TOKEN"
        case RepositoryNotFoundError():
            reason = "there is no such model, or it is private; check the name or set HF_TOKEN"
        case RevisionNotFoundError():
            reason = f"it has no revision {revision!r}"
        case LocalEntryNotFoundError() if constants.HF_HUB_OFFLINE:
            reason = "it is not in the cache, and HF_HUB_OFFLINE is set; unset it to fetch"
        case LocalEntryNotFoundError():
            reason = "the hub cannot be reached and no copy is cached; give a local directory"
        case OSError(errno=errno.ENOSPC):
            return disk_full(name.repository)
        case HfHubHTTPError() if error.response.status_code == 401:
            reason = "the hub refuses the token; check HF_TOKEN"
        case _:
            lines = str(error).splitlines() or [type(error).__name__]
            reason = f"{lines[0]}; check the network and try again, which resumes"
    return ModelError(f"cannot fetch {name} from the hub: {reason}")
