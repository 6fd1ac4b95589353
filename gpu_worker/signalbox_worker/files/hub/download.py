"""Fetches a model from the Hugging Face hub into its local cache, by branch, tag or commit.

huggingface_hub reads HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME and the rest of its variables.
Of a repository of GGUF files only the model that is meant is fetched.
"""

import errno
import glob
import json
import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from signalbox_contract.startup import ReportProgress, StartupPhase, StartupProgress
from signalbox_worker.config import ModelError
from signalbox_worker.files.hub.file_transfer import disk_full
from signalbox_worker.files.hub.gguf_file_names import (
    PREFERRED,
    GGUFVariant,
    check_parts,
    choose_variant,
    describe,
    find_variants,
    format_bytes,
)
from signalbox_worker.files.hub.hub_model import Check, HubModel, fetch_any
from signalbox_worker.files.hub.model_name import HubName, parse_hub_name
from signalbox_worker.files.hub.weight_file_names import (
    DUPLICATES,
    INDEX,
    SAFETENSORS,
    TORCH_FILES,
    choose_weight_files,
    names_of_index,
)

logger = logging.getLogger(__name__)

CONFIG = "config.json"
_MODULES = "[0-9]_*"
"""Folders of sentence-transformers' modules."""
_SERVER_ERROR = 500
ANSWER_S = 4.0
"""Seconds in which the hub must be reached, and answer if the cache has the model; huggingface_hub
itself tries for 23 s, or longer where packets are dropped."""
_UNREACHED = {"ConnectError", "ConnectTimeout", "ConnectionError", "ConnectionTimeout"}
"""Errors of the HTTP libraries of huggingface_hub's versions."""


def download(
    model: str,
    revision: str | None,
    progress: ReportProgress,
    *,
    with_weights: bool = True,
    check: Check = fetch_any,
) -> Path:
    """Returns the local directory of a hub model, or the first file of one in GGUF.

    Args:
        check: called before weights are fetched, if any are missing.

    Raises ModelError, in one line, for what cannot be had.
    """
    with speaking_of(model, revision) as name:
        of_revision = f", revision {revision}" if revision else ""
        logger.info("fetching %s from the hub%s", name, of_revision)
        progress(StartupProgress(StartupPhase.FETCH))
        found = _find(name, revision, with_weights=with_weights)
        return found if isinstance(found, Path) else found.fetch(progress, check)


def find_cached(model: str, revision: str | None) -> Path | None:
    """Returns the whole copy of a model in the cache, without asking the hub; None if there is
    none."""
    name = parse_hub_name(model)
    return None if name is None else _find_cached(name, revision, with_weights=True)


def find_on_hub(model: str, revision: str | None) -> HubModel | Path:
    """Returns what `download` would fetch; its result, if the hub does not answer.

    Raises ModelError, as `download` does.
    """
    with speaking_of(model, revision) as name:
        return _find(name, revision, with_weights=True)


@contextmanager
def speaking_of(model: str, revision: str | None) -> Iterator[HubName]:
    """Yields a model's name, and makes errors of the hub a ModelError of one line."""
    from huggingface_hub.utils.logging import get_logger

    get_logger().handlers.clear()  # with the library's own, each line comes twice
    name = parse_hub_name(model)
    if name is None:
        if Path(model).exists():
            raise ModelError(f"{model} is here already; `signalbox doctor {model}` describes it")
        raise ModelError(f"{model} is no hub id; give org/name or org/name:Q4_K_M")
    try:
        yield name
    except ModelError:
        raise
    except Exception as error:  # also those of the HTTP library, which differ between versions
        raise _in_one_line(name, revision, error) from error


def _find(name: HubName, revision: str | None, *, with_weights: bool) -> HubModel | Path:
    cached = _find_cached(name, revision, with_weights=with_weights)
    fault = _why_no_answer(name.repository, revision)
    if cached is not None and fault is not None:
        logger.info("the hub does not answer; using the copy of %s in the cache: %s", name, cached)
        return cached
    files = _list_files(name.repository, revision, fault)
    variant = _choose_gguf(name, files) if with_weights else None
    weights = tuple(_weights_of(files)) if with_weights else ()
    if variant is not None:
        _tell_choice(name, variant, files)
        weights = tuple(map(glob.escape, variant.files))
    elif name.tag is not None:
        raise ModelError(f"{name.repository} has no GGUF files; leave out :{name.tag}")
    return HubModel(
        repository=name.repository,
        revision=revision,
        sizes=files,
        weights=weights,
        gguf=None if variant is None else variant.files[0],
    )


def _find_cached(name: HubName, revision: str | None, *, with_weights: bool) -> Path | None:
    """Returns the copy of a model in the cache, as `download` does; None if it is not whole."""
    try:
        folder = _snapshot(name.repository, revision)
        files = _list_folder(folder)
        variant = _choose_gguf(name, files) if with_weights else None
        if variant is not None:
            return folder / variant.files[0]
        is_whole = CONFIG in files and (not with_weights or _has_weights(folder, files))
    except (ModelError, OSError, ValueError, LookupError):  # nothing, a part, or a bad index
        return None
    return folder if is_whole and name.tag is None else None


def _has_weights(folder: Path, files: Collection[str]) -> bool:
    """Returns whether a folder in Hugging Face's layout has all files of weights."""
    chosen = choose_weight_files(files)
    if chosen and chosen[0].endswith(INDEX):
        return {*names_of_index(json.loads((folder / chosen[0]).read_bytes()))} <= {*files}
    return _has(files, SAFETENSORS) or _has(files, TORCH_FILES)


def _weights_of(files: Collection[str]) -> list[str]:
    """Returns the patterns of the weights to fetch; a model may lie in a folder of its own."""
    folders: dict[str, list[str]] = {"": []}
    for file in files:
        folder, _, name = file.rpartition("/")
        if not folder or fnmatch(folder, _MODULES):
            folders.setdefault(folder, []).append(name)
    patterns = {folder: _pattern_of(names) for folder, names in folders.items()}
    patterns[""] = patterns[""] or (SAFETENSORS if _has(files, SAFETENSORS) else TORCH_FILES)
    return [f"{folder}/{one}".lstrip("/") for folder, one in patterns.items() if one is not None]


def _pattern_of(names: Collection[str]) -> str | None:
    """Returns the pattern of the weights that count in a folder; None if it has none."""
    chosen = [name.removesuffix(INDEX) for name in choose_weight_files(names)]
    if not chosen:
        return None
    return SAFETENSORS if fnmatch(chosen[0], SAFETENSORS) else TORCH_FILES


def _why_no_answer(repository: str, revision: str | None) -> Exception | None:
    """Returns why the hub does not answer; None if it does, also that the model may not be had."""
    answers: list[Exception | None] = []
    thread = threading.Thread(
        target=lambda: answers.append(_ask(repository, revision)), name="hub", daemon=True
    )
    thread.start()
    thread.join(ANSWER_S + 0.5)
    return answers[0] if answers else ConnectionError("its name is not resolved")


def _ask(repository: str, revision: str | None) -> Exception | None:
    import huggingface_hub as hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        hub.HfApi().model_info(repository, revision=revision, timeout=ANSWER_S)
    except HfHubHTTPError as error:
        return error if error.response.status_code >= _SERVER_ERROR else None
    except Exception as error:  # those of the HTTP library, which differ between versions
        return error
    return None


def _choose_gguf(name: HubName, files: dict[str, int]) -> GGUFVariant | None:
    """Returns None for a repository in Hugging Face's layout, unless a tag asks for a GGUF."""
    if name.tag is None and (_has(files, SAFETENSORS) or _has(files, TORCH_FILES)):
        return None
    variants = find_variants(files)
    if not variants:
        return None
    chosen = choose_variant(name.repository, variants, name.tag)
    check_parts(name.repository, chosen)
    return chosen


def _tell_choice(name: HubName, chosen: GGUFVariant, files: dict[str, int]) -> None:
    """Warns of a choice that the name has left open."""
    variants = find_variants(files)
    if name.tag is None and len(variants) > 1:
        why = "" if chosen.label == PREFERRED else f", the nearest in size to {PREFERRED}"
        logger.warning(
            "%s: taking %s%s; name another as %s:TAG: %s",
            name.repository,
            f"{chosen.files[0]} ({format_bytes(chosen.num_bytes)})",
            why,
            name.repository,
            describe([one for one in variants if one != chosen]),
        )


def _has(files: Collection[str], pattern: str) -> bool:
    return any(
        fnmatch(file, pattern) and not any(fnmatch(file, other) for other in DUPLICATES)
        for file in files
    )


def _list_files(repository: str, revision: str | None, fault: Exception | None) -> dict[str, int]:
    """Returns path and size of each file; of those in the cache, if the hub does not answer.

    Args:
        fault: why it did not answer a moment ago.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if any(kind.__name__ in _UNREACHED for kind in type(fault).__mro__):
        logger.info("the hub cannot be reached; looking into the cache")
        return _list_folder(_snapshot(repository, revision))
    try:
        entries = list(hub.HfApi().list_repo_tree(repository, recursive=True, revision=revision))
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception as error:
        logger.info("the hub does not answer (%s); looking into the cache", type(error).__name__)
        try:
            return _list_folder(_snapshot(repository, revision))
        except LocalEntryNotFoundError:
            if isinstance(error, HfHubHTTPError):
                raise error from None
            raise
    return {entry.path: entry.size for entry in entries if isinstance(entry, hub.RepoFile)}


def _snapshot(repository: str, revision: str | None) -> Path:
    """Raises LocalEntryNotFoundError for a revision of which nothing is cached."""
    import huggingface_hub as hub

    return Path(
        hub.snapshot_download(
            repository, revision=revision, local_files_only=True, allow_patterns=[]
        )
    )


def _list_folder(folder: Path) -> dict[str, int]:
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
            reason = "the hub cannot be reached and no copy is cached; give a local file or folder"
        case OSError(errno=errno.ENOSPC):
            return disk_full(name.repository)
        case HfHubHTTPError() if error.response.status_code == 401:
            reason = "the hub refuses the token; check HF_TOKEN"
        case _:
            lines = str(error).splitlines() or [type(error).__name__]
            reason = f"{lines[0]}; check the network and try again, which resumes"
    return ModelError(f"cannot fetch {name} from the hub: {reason}")
