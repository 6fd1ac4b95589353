"""Puts a source's tensors into a model's packed weights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from contract.startup import ReportProgress, StartupPhase, StartupProgress
from gpu_worker.config import ModelError
from gpu_worker.loading.dummy_source import DummySource
from gpu_worker.loading.model_source import ModelSource
from gpu_worker.models import Model
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.torch.tensors import as_tensor


@runtime_checkable
class LoadsItself(Protocol):
    """A model that reads its checkpoint's directory in its own way."""

    def load(self, directory: Path, progress: ReportProgress) -> None: ...


def load_weights(
    model: Model,
    source: ModelSource,
    progress: ReportProgress,
) -> None:
    """Loads every weight and packs them; all must be there."""
    progress(StartupProgress(StartupPhase.LOAD))
    if isinstance(source, DummySource):
        _refuse_dummy_weights(model)
    elif source.directory is not None and isinstance(model, LoadsItself):
        model.load(source.directory, progress)
    else:
        _load_each(model, source.weights(), progress)
    model.finish()


def _refuse_dummy_weights(model: Model) -> None:
    """Ours hold made-up weights since they were built; others are built without."""
    if isinstance(model, LoadsItself):
        raise ModelError(
            "load_format 'dummy' is not served for models that run through transformers; use 'auto'"
        )


def _load_each(
    model: Model, weights: Iterable[tuple[str, AnyArray]], progress: ReportProgress
) -> None:
    targets = model.weight_targets()
    of_bare_model = {name.partition(".")[2]: name for name in targets}
    total = len(targets)
    for name, array in weights:
        # some checkpoints were saved from the model within the model, and lack its name
        target = targets.pop(name, None) or targets.pop(of_bare_model.get(name, ""), None)
        if target is not None:
            target(as_tensor(array))
        elif not model.ignores(name):
            raise ModelError(f"unexpected weight {name!r}; config.json names another architecture")
        progress(StartupProgress(StartupPhase.LOAD, total - len(targets), total))
    if targets:
        raise ModelError(
            f"{len(targets)} weights are missing, such as {min(targets)!r}; the model is incomplete"
        )
