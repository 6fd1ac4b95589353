"""Finds a model's tensors among those of a checkpoint, and names those that do not fit."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from math import prod
from typing import NamedTuple

import numpy as np

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor

FURTHER = "mtp."
"""Beginning of the names of layers that predict further tokens, in Qwen's checkpoints."""
_ROWS = 1024
"""Rows of tables that are compared at a time."""


class ExpertNames(NamedTuple):
    """Names of an expert's matrices in a checkpoint, without `.weight`."""

    gate: str
    up: str
    down: str


def matched(
    names: Collection[str],
    stored: Mapping[str, StoredTensor],
    *,
    ignores: Callable[[str], bool],
    tied: tuple[str, str] | None = None,
) -> dict[str, StoredTensor]:
    """Returns the tensors by the model's own names.

    Args:
        ignores: says whether another tensor may be there.
        tied: a name, and that of an ignored tensor that stands for it where it is missing.

    Raises ModelError if the checkpoint has other tensors, or lacks some.
    """
    left, found = dict(stored), dict[str, StoredTensor]()
    for name in names:
        alias = next((one for one in aliases(name) if one in left), None)
        if alias is not None:
            found[name] = left.pop(alias)
    if tied is not None and tied[0] not in found and tied[1] in left:
        found[tied[0]] = left.pop(tied[1])
    unexpected = [
        name for name, tensor in left.items() if not (ignores(name) or _is_no_bias(name, tensor))
    ]
    check_names(unexpected, missing=set(names) - found.keys())
    return found


def distinct_tensors(tensors: Iterable[tuple[str, str, StoredTensor]]) -> dict[str, StoredTensor]:
    """Returns tensors by their names. Raises ModelError if two of one name differ.

    Args:
        tensors: the name of each, where it stands, and itself.
    """
    found, places = dict[str, StoredTensor](), dict[str, str]()
    for name, place, tensor in tensors:
        if name in found and not are_equal(found[name], tensor):
            raise ModelError(
                f"{name} stands in two places with different content, as {places[name]} and as "
                f"{place}; remove what is not meant"
            )
        found.setdefault(name, tensor)
        places.setdefault(name, place)
    return found


def are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Says whether two tensors hold the same values; compares part by part, as a difference is
    often in the first."""
    if one.shape != other.shape:
        return False
    return all(map(_are_equal, _parts(one), _parts(other)))


def _parts(tensor: StoredTensor) -> Iterator[AnyArray]:
    """Yields a tensor's rows, some at a time, read so where they can be."""
    num_rows = prod(tensor.shape[:-1])
    read_rows = tensor.read_rows
    if read_rows is None:
        values = np.atleast_1d(tensor.read()).reshape(num_rows, -1)
    for start in range(0, num_rows, _ROWS):
        end = min(start + _ROWS, num_rows)
        yield values[start:end] if read_rows is None else read_rows(start, end)


def _are_equal(values: AnyArray, others: AnyArray) -> bool:
    if values.dtype != others.dtype:
        values, others = to_float32(values), to_float32(others)
    return values.tobytes() == others.tobytes()


def aliases(name: str) -> tuple[str, str]:
    """Returns a tensor's name in checkpoints, and in those of the model within the model, which
    lack that model's name, such as "model."."""
    return name, name.partition(".")[2]


def find(stored: Mapping[str, StoredTensor], name: str) -> StoredTensor | None:
    """Returns a tensor by either of its aliases; None if there is none."""
    return next((stored[one] for one in aliases(name) if one in stored), None)


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
            f"weights are missing, such as {min(missing)!r} ({len(missing)} in all); the model is"
            " incomplete, fetch it again"
        )


def check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Raises ModelError if a tensor has another shape than config.json gives it."""
    if shape != expected:
        raise ModelError(
            f"{name} has shape {shape} where {expected} is expected; config.json does not belong to"
            " these weights"
        )
