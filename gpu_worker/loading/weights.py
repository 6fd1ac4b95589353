"""Puts a source's tensors into a model's packed weights."""

from gpu_worker.config import ModelError
from gpu_worker.loading.source import ModelSource, Progress
from gpu_worker.models import Model


def load_weights(model: Model, source: ModelSource, progress: Progress) -> None:
    """Loads every weight and packs them; a tensor too many or too few is an error."""
    targets = model.weight_targets()
    total = len(targets)
    reported = 0
    for name, tensor in source.weights():
        target = targets.pop(name, None)
        if target is not None:
            target(tensor)
        elif not model.ignores(name):
            raise ModelError(f"unexpected weight {name!r}; config.json names another architecture")
        quarter = 4 * (total - len(targets)) // total
        if quarter > reported:
            reported = quarter
            progress(f"loading weights: {25 * quarter} %")
    if targets:
        raise ModelError(
            f"{len(targets)} weights are missing, such as {min(targets)!r}; the model is incomplete"
        )
    model.finish()
