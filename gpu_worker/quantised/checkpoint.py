"""The forms of a checkpoint's matrices, module by module.

The tensors of a module say whether it is quantised, since what a checkpoint leaves as it is has
none of a form's. Its configuration says how. A module that has such tensors although the
configuration leaves it out is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_worker.quantised.form import QuantisedForm


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
    rounds_activations: bool = False
    """True if products are meant with activations in few bits, too."""
    separator: str = "."
    """Characters between the name of a module and the end that tells its tensors apart."""
