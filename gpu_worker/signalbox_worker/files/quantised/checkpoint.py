"""The forms of a checkpoint's matrices, module by module.

The tensors of a module say whether it is quantised, since what a checkpoint leaves as it is has
none of a form's. Its configuration says how. A module that has such tensors although the
configuration leaves it out is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from signalbox_worker.files.quantised.activations import ActivationScheme
from signalbox_worker.files.quantised.form import QuantisedForm


@dataclass(frozen=True, slots=True)
class QuantisedCheckpoint:
    """The contents of a `quantization_config`."""

    name: str
    """Value of `--quantization` that keeps it."""
    forms: tuple[QuantisedForm, ...]
    """All forms that modules may have, the commonest first."""
    form_of: Callable[[str], QuantisedForm | None]
    """Returns the form of a module, such as "model.layers.0.mlp.up_proj"; None if it is left out.
    """
    activations_of: Callable[[str], ActivationScheme | None] = lambda module: None
    """Returns how products with the matrix of a module round activations; None if they do not."""
    activations: tuple[ActivationScheme, ...] = ()
    """All schemes that modules may have, in the order of the configuration."""
    leaves_activations: bool = False
    """True if the checkpoint also prescribes schemes that no program computes."""
    separator: str = "."
    """Characters between the name of a module and the end that tells its tensors apart."""
    by_marker: Mapping[str, "QuantisedCheckpoint"] = field(default_factory=dict)
    """Checkpoints that modules with a marker are of, where the configuration leaves it open."""
    other_names: tuple[str, ...] = ()
    """Other values of `--quantization` that keep it."""
