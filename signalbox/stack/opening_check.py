"""Opens a model that is here before any process starts: one that no worker serves is refused first.

A model that PyTorch runs is opened in a process of its own: this one, which may be copied and lives
as long as the stack, imports no PyTorch.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.model_needs import check_native, examine_model
from signalbox_contract.startup import ignore_progress
from signalbox_worker.config import ModelError
from signalbox_worker.files.hub.download import find_cached
from signalbox_worker.models.family_config import UnsoundConfig
from signalbox_worker.models.registry import model_spec
from signalbox_worker.runner.loading.model_source import find_model, naming, source_at
from signalbox_worker.runner.loading.opened_model import open_with_config, window
from signalbox_worker.runner.native.eligibility import may_have_gpu, why_not_meant


def check_opening(settings: ServeSettings) -> None:
    """Raises ModelError for a folder or file that is not served; a worker looks at a model on the
    hub before it fetches that."""
    if settings.simulate:
        return
    path = find_model(settings) or find_cached(settings.model, settings.revision)
    if path is None:
        return
    here = settings.model_copy(update={"model": str(path)})
    with naming(settings.model), _silence():
        if not (_opens_without_pytorch(here) and _check_natively(here)):
            _check_apart(here)


@contextmanager
def _silence() -> Iterator[None]:
    """Drops what opening a model logs, which the worker logs again."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _opens_without_pytorch(settings: ServeSettings) -> bool:
    """Says whether a family of ours with native programs reads the configuration."""
    if settings.model_impl == "transformers" or settings.plugins or may_have_gpu(settings):
        return False
    is_dummy = settings.load_format == "dummy"
    config = source_at(Path(settings.model), name="", is_dummy=is_dummy).config
    try:
        spec = model_spec(config)
        is_native = spec.is_llama or not spec.generates
        return is_native and bool(spec.read_config(config))
    except UnsoundConfig:
        raise
    except ModelError:  # transformers may run it
        return False


def _check_natively(settings: ServeSettings) -> bool:
    """Returns False for a model that PyTorch runs. Raises ModelError for one that is not served."""
    opened = open_with_config(settings, ignore_progress)
    if why_not_meant(opened, settings, settings, settings, settings.parallel) is not None:
        return False
    window(settings, opened)
    check_native(settings, opened)
    opened.tokenizer_files()
    return True


def _check_apart(settings: ServeSettings) -> None:
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


def _main() -> int:
    try:
        examine_model(ServeSettings.model_validate_json(sys.stdin.read()))
    except (ValueError, OSError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
