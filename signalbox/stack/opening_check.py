"""Opens a model that is here before any process starts: one that no worker serves is refused first.

A model that PyTorch runs is opened in a process of its own: this one, which may be copied and lives
as long as the stack, imports no PyTorch.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.model_check import chosen_form
from signalbox.stack.model_needs import check_native, examine_model
from signalbox.stack.models.model_facts import ModelFacts
from signalbox_worker.config import ModelError
from signalbox_worker.files.hub.download import find_cached
from signalbox_worker.models.family_config import UnsoundConfig
from signalbox_worker.models.registry import model_spec
from signalbox_worker.runner.loading.model_source import (
    ModelSource,
    find_model,
    naming,
    source_at,
)
from signalbox_worker.runner.loading.opened_model import open_source, window
from signalbox_worker.runner.loading.tokenizer_files import TOKENIZER, has_tokenizer, no_tokenizer
from signalbox_worker.runner.native.eligibility import may_have_gpu, why_not_meant


def check_opening(settings: ServeSettings) -> ModelFacts | None:
    """Returns what the files tell; None for a model that is simulated or not here.

    Raises ModelError for a folder or file that is not served; a worker looks at a model on the hub
    before it fetches that.
    """
    if settings.simulate:
        return None
    path = find_model(settings) or find_cached(settings.model, settings.revision)
    if path is None:
        return None
    here = settings.model_copy(update={"model": str(path)})
    with naming(settings.model), _silence():
        source = source_at(path, name=path.name, is_dummy=here.load_format == "dummy")
        facts = _check_natively(here, source) if _opens_without_pytorch(here, source) else None
        return facts or _check_apart(here)


@contextmanager
def _silence() -> Iterator[None]:
    """Drops what opening a model logs, which the worker logs again."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _opens_without_pytorch(settings: ServeSettings, source: ModelSource) -> bool:
    """Says whether a family of ours with native programs reads the configuration, and no tokenizer
    has to be converted."""
    if settings.model_impl == "transformers" or settings.plugins or may_have_gpu(settings):
        return False
    try:
        spec = model_spec(source.config)
        if spec.generates and not spec.is_llama:
            return False
        spec.read_config(source.config)
    except UnsoundConfig:
        raise
    except ModelError:  # transformers may run it
        return False
    if (folder := source.directory) is None:
        return True
    if not has_tokenizer(folder):
        if settings.load_format == "dummy":  # which makes one
            return True
        raise no_tokenizer(folder)
    return (folder / TOKENIZER).is_file()


def _check_natively(settings: ServeSettings, source: ModelSource) -> ModelFacts | None:
    """Returns None for a model that PyTorch runs. Raises ModelError for one that is not served."""
    opened = open_source(settings, source)
    if why_not_meant(opened, settings, settings, settings, settings.parallel) is not None:
        return None
    length, sizes = window(settings, opened), source.sizes
    check_native(settings, opened)
    form = "" if sizes is None else chosen_form(settings, sizes, natively=True)
    return ModelFacts(
        architecture=opened.shape.architecture,
        task="generate" if opened.pooling is None else opened.pooling.model.task,
        max_model_len=length,
        file_bytes=_file_bytes(source),
        weights_bytes=0 if sizes is None else sizes.bytes_in(form),
    )


def _file_bytes(source: ModelSource) -> int:
    return sum(path.stat().st_size for path in source.files() if path.exists())


def _check_apart(settings: ServeSettings) -> ModelFacts:
    """Opens a model in a process of its own."""
    trial = subprocess.run(
        [sys.executable, "-m", __name__],
        input=settings.model_dump_json(exclude_defaults=True),
        capture_output=True,
        text=True,
        check=False,
    )
    if trial.returncode:
        raise ModelError(trial.stdout.strip() or trial.stderr.strip().rpartition("\n")[2])
    return ModelFacts(**json.loads(trial.stdout.splitlines()[-1]))  # libraries may print before


def _examined(settings: ServeSettings) -> ModelFacts:
    needs = examine_model(settings).needs
    path = find_model(settings)
    assert path is not None, "the parent has found it"
    source = source_at(path, name=path.name, is_dummy=settings.load_format == "dummy")
    return ModelFacts(
        architecture=needs.architecture,
        task=needs.task,
        max_model_len=needs.max_model_len,
        file_bytes=_file_bytes(source),
        weights_bytes=needs.weights_bytes or 0,
    )


def _main() -> int:
    try:
        print(json.dumps(asdict(_examined(ServeSettings.model_validate_json(sys.stdin.read())))))
    except (ValueError, OSError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
