"""Fetches a model from the Hugging Face hub into its local cache."""

from pathlib import Path

from gpu_worker.config import ModelError
from gpu_worker.loading.source import Progress

_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]


def download(model: str, revision: str | None, progress: Progress) -> Path:
    """Returns the local directory of a hub model."""
    import huggingface_hub as hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    progress(f"fetching {model} from the hub")
    try:
        return Path(hub.snapshot_download(model, revision=revision, allow_patterns=_FILES))
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
