"""Puts one tensor where a checkpoint has several of a quantised matrix."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from signalbox_kernels.floats import FLOAT8_E4M3, AnyArray, dtype_name
from signalbox_kernels.rounding import Rounding
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.quantised.activations import ActivationScheme
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.form import BYTES, INDICES, WEIGHT, WORDS, QuantisedForm

_CODES = WORDS | INDICES | BYTES | {np.dtype(np.int8), FLOAT8_E4M3}


def with_matrices(
    stored: Mapping[str, StoredTensor], checkpoint: QuantisedCheckpoint | None
) -> dict[str, StoredTensor]:
    """Puts one tensor under `X.weight` where the files have several of a quantised matrix X.

    Its `parts` are those of the files; reading it decodes them.
    """
    found = dict(stored)
    if checkpoint is None:
        return found
    for module, marker in _modules(stored, checkpoint):
        own = checkpoint.by_marker.get(marker, checkpoint)
        form = own.form_of(module)
        if form is None:
            raise ModelError(
                f"{module} has {marker}, but quantization_config leaves it out; config.json does "
                "not belong to these weights"
            )
        names = {end: f"{module}{checkpoint.separator}{end}" for end in form.ends}
        parts = {end: found.pop(name) for end, name in names.items() if name in stored}
        if f"{module}.{WEIGHT}" in found:
            raise ModelError(f"{module} has both a weight and one in {form.name}; fetch it again")
        activations = own.activations_of(module)
        found[f"{module}.{WEIGHT}"] = _joined(module, parts, form, activations)
    _refuse_lone_codes(found, checkpoint)
    return found


def _refuse_lone_codes(found: Mapping[str, StoredTensor], checkpoint: QuantisedCheckpoint) -> None:
    """Raises ModelError for codes of a matrix whose other tensors are missing."""
    ends = {end for form in checkpoint.forms for end in form.ends}
    for name, tensor in found.items():
        is_part = tensor.form is None and tensor.dtype in _CODES
        for end in ends if is_part else ():
            if name.endswith(f"{checkpoint.separator}{end}"):
                module = name.removesuffix(f"{checkpoint.separator}{end}")
                raise ModelError(
                    f"{module} lacks tensors beside its {end}, which are in "
                    f"{checkpoint.name}; fetch it again"
                )


def _modules(
    stored: Mapping[str, StoredTensor], checkpoint: QuantisedCheckpoint
) -> list[tuple[str, str]]:
    """Returns each quantised module with a marker that it has."""
    separator = checkpoint.separator
    markers = {f"{separator}{form.marker}" for form in checkpoint.forms}
    found = {
        name.removesuffix(marker): marker.removeprefix(separator)
        for name in stored
        for marker in markers
        if name.endswith(marker)
    }
    return list(found.items())


def _joined(
    module: str,
    parts: Mapping[str, StoredTensor],
    form: QuantisedForm,
    activations: ActivationScheme | None,
) -> StoredTensor:
    try:
        if form.marker not in parts:
            raise ValueError
        shapes = {end: part.shape for end, part in parts.items()}
        if not all(parts[end].dtype in form.ends[end] for end in parts):
            raise ValueError
        shape = form.shape(shapes, lambda end: parts[end].read())
        if not all(shape):
            raise ValueError
    except (KeyError, ValueError, TypeError, ArithmeticError):
        listed = ", ".join(f"{end} {_described(part)}" for end, part in sorted(parts.items()))
        raise ModelError(
            f"{module} has {listed}, which is no matrix in {form.name}; fetch the checkpoint again"
        ) from None
    rounding = None if activations is None else _rounding(module, parts, activations)
    return StoredTensor(
        shape, partial(_read, parts, form), parts=parts, form=form, rounding=rounding
    )


def _rounding(
    module: str, parts: Mapping[str, StoredTensor], activations: ActivationScheme
) -> Rounding:
    try:
        return activations.rounding(lambda end: parts[end].read() if end in parts else None)
    except ValueError as error:
        raise ModelError(f"{module} has {error}; fetch the checkpoint again") from None


def _described(part: StoredTensor) -> str:
    name = "of a type that is not read" if part.dtype is None else dtype_name(part.dtype)
    return f"{list(part.shape)} {name}"


def _read(parts: Mapping[str, StoredTensor], form: QuantisedForm) -> AnyArray:
    return form.decode({end: part.read() for end, part in parts.items()})
