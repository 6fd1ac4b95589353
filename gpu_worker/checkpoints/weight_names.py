"""Finds a model's tensors among those of a checkpoint, and names those that do not fit."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set

from gpu_worker.checkpoints.stored_tensor import StoredTensor
from gpu_worker.config import ModelError
from signalbox_kernels.floats import to_float32


def matched(
    names: Collection[str],
    stored: Mapping[str, StoredTensor],
    *,
    ignores: Callable[[str], bool],
) -> dict[str, StoredTensor]:
    """Returns the tensors by the model's own names.

    Checkpoints of the model within the model lack its name, such as "model.".

    Args:
        ignores: says whether another tensor may be there.

    Raises ModelError if the checkpoint has other tensors, or lacks some.
    """
    left, found = dict(stored), dict[str, StoredTensor]()
    for name in names:
        for alias in (name, name.partition(".")[2]):
            if alias in left:
                found[name] = left.pop(alias)
                break
    unexpected = [
        name for name, tensor in left.items() if not (ignores(name) or _is_no_bias(name, tensor))
    ]
    check_names(unexpected, missing=set(names) - found.keys())
    return found


def _is_no_bias(name: str, tensor: StoredTensor) -> bool:
    """Says whether a tensor is a bias of zeroes, which AutoGPTQ gives to layers without one."""
    return name.endswith(".bias") and not to_float32(tensor.read()).any()


def check_names(unexpected: Sequence[str], *, missing: Set[str]) -> None:
    """Raises ModelError if a checkpoint has tensors that no model wants, or lacks some."""
    if unexpected:
        raise ModelError(
            f"unexpected weight {unexpected[0]!r}; config.json names another architecture"
        )
    if missing:
        raise ModelError(
            f"{len(missing)} weights are missing, such as {min(missing)!r}; the model is incomplete"
        )


def check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises ModelError if a tensor has another shape than config.json gives it."""
    if shape != expected:
        raise ModelError(
            f"{name} has shape {shape} where {expected} is expected; config.json does not belong to"
            " these weights"
        )
