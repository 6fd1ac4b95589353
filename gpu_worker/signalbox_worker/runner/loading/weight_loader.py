"""Puts a source's tensors into a model's packed weights."""

import logging
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from signalbox_contract.startup import ReportProgress, StartupPhase, StartupProgress
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.torch.tensors import as_tensor
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.kv_scales import is_attention_scale
from signalbox_worker.files.checkpoints.quantization import Quantization
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import aliases, matched
from signalbox_worker.files.quantised.form import QuantisedForm
from signalbox_worker.models import Model
from signalbox_worker.models.layers import WeightTarget
from signalbox_worker.models.layers.linear import Linear, MatrixTarget
from signalbox_worker.models.layers.matrix_formats import kernel_rounds_inputs, matrix_format
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.model_source import ModelSource

logger = logging.getLogger(__name__)


class _Form(NamedTuple):
    """The form of a matrix in a checkpoint, and how the checkpoint rounds the layer's inputs."""

    form: QuantisedForm | None
    rounding: Rounding | None


def load_weights(
    model: Model,
    source: ModelSource,
    progress: ReportProgress,
    quantization: Quantization | None = None,
    *,
    rounds_activations: bool = True,
    of_other_stages: Set[str] = frozenset(),
    tied: tuple[str, str] | None = None,
) -> None:
    """Loads every weight and packs them; all must be there, and no others.

    Args:
        rounds_activations: lets products round activations as the checkpoint prescribes.
        of_other_stages: names of tensors that a pipeline stage leaves to the others.
        tied: names of the table of embeddings and of the head that are one matrix.
        quantization: a form that layers hold; None holds all matrices in the model's dtype.
    """
    progress(StartupProgress(StartupPhase.LOAD))
    if quantization is not None and model.loads_itself:
        raise ModelError(
            f"{quantization.name} is not served for models that run through transformers; use "
            "--quantization none"
        )
    if isinstance(source, DummySource):
        _refuse_dummy_weights(model)
        _choose_formats(model, None, quantization)
    elif source.directory is not None and model.loads_itself:
        model.load(source.directory, progress)
    elif not model.load_tensors(stored := source.stored()):
        others = {alias for name in of_other_stages for alias in aliases(name)}
        stored = matched(
            model.weight_targets(),
            stored,
            ignores=lambda name: name in others or model.ignores(name) or is_attention_scale(name),
            tied=tied if tied is not None and tied[0] in model.weight_targets() else None,
        )
        _choose_formats(model, stored, quantization)
        if rounds_activations:
            _round_inputs(model, stored)
        _load_each(model, stored, progress)
    model.finish()


def _refuse_dummy_weights(model: Model) -> None:
    """Ours hold made-up weights since they were built; others are built without."""
    if model.loads_itself:
        raise ModelError(
            "load_format 'dummy' is not served for models that run through transformers; use 'auto'"
        )


def _choose_formats(
    model: Model, stored: Mapping[str, StoredTensor] | None, quantization: Quantization | None
) -> None:
    """Tells layers in which format to hold their matrices.

    Of a quantised checkpoint these are the layers all of whose parts have one form there.

    Args:
        stored: the tensors of all targets; None for made-up weights.
    """
    if quantization is None:
        return
    assert quantization.form is not None, "PyTorch's layers hold no blocks"
    forms_of: dict[Linear, list[_Form]] = {}
    for name, target in model.weight_targets().items():
        if isinstance(target, MatrixTarget):
            form = _Form(quantization.form, None)
            if quantization.is_stored and stored is not None:
                tensor = stored[name]
                form = _Form(
                    tensor.form, tensor.rounding if target.layer.can_round_inputs else None
                )
            forms_of.setdefault(target.layer, []).append(form)
    num_held = sum(len(forms) for layer, forms in forms_of.items() if _hold(layer, forms))
    if not num_held:
        raise ModelError(
            f"quantization is {quantization.name!r}, but no matrix of {type(model).__name__} can "
            "be held in it; use 'none'"
        )
    num_quantised = sum(one.form is not None for forms in forms_of.values() for one in forms)
    num_others = num_quantised - num_held if quantization.is_stored else 0
    others = f"; {num_others} that no kernel takes are decoded" if num_others else ""
    logger.info("%d matrices are held in %s%s", num_held, quantization.name, others)


def _hold(layer: Linear, forms: Sequence[_Form]) -> bool:
    """Makes a layer hold the form of its parts, if that is one for which there is a format."""
    form, rounding = forms[0]
    is_one = form is not None and len({*forms}) == 1
    matrices = matrix_format(form, rounding) if is_one and form is not None else None
    if matrices is None or not layer.can_hold(matrices):
        return False
    layer.hold_as(matrices)
    return True


def _round_inputs(model: Model, stored: Mapping[str, StoredTensor]) -> None:
    """Makes layers round their inputs as the checkpoint prescribes; logs where none do."""
    layers: dict[Linear, dict[str, Rounding]] = {}
    num_others = 0
    for name, target in model.weight_targets().items():
        form, rounding = stored[name].form, stored[name].rounding
        if form is None or rounding is None:
            continue
        if not isinstance(target, MatrixTarget) or not target.layer.can_round_inputs:
            num_others += 1
        elif not (target.layer.is_quantised and kernel_rounds_inputs(form)):
            layers.setdefault(target.layer, {})[target.part] = rounding
    for layer, roundings in layers.items():
        layer.round_inputs(roundings)
    if num_others:
        logger.info("activations are not rounded as prescribed before %d matrices", num_others)


def _put(tensor: StoredTensor, target: WeightTarget) -> None:
    if isinstance(target, MatrixTarget) and target.layer.is_quantised and tensor.parts:
        target.load({end: as_tensor(part) for end, part in tensor.read_parts().items()})
    else:
        target(as_tensor(tensor.read()))


def _load_each(model: Model, stored: dict[str, StoredTensor], progress: ReportProgress) -> None:
    """Takes each tensor out of `stored`, which may hold values of an old file of PyTorch."""
    targets = model.weight_targets()
    for num_loaded, name in enumerate(targets, start=1):
        _put(stored.pop(name), targets[name])
        progress(StartupProgress(StartupPhase.LOAD, num_loaded, len(targets)))
