"""`ModelRegistry`: vLLM's name of the registry of models outside the tree."""

from collections.abc import Set
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from signalbox_worker.models import ModelSpec


class ModelRegistry:
    """Models by the architecture that their config.json names; the methods are static."""

    @staticmethod
    def register_model(model_arch: str, model: "ModelSpec | str") -> None:
        """Adds a model for this process, or replaces the one of the same architecture.

        Args:
            model: a `signalbox_worker.models.ModelSpec`, or its location "module:name". A module
                that registers the model itself when it is imported is given as "module".

        Raises TypeError for anything else, including vLLM's model classes, whose forward pass
        differs: see docs/how_to/add_a_model.md. Raises ValueError if the architectures differ.
        """
        from signalbox_worker.models import ModelSpec, register_model

        if isinstance(model, str):
            module, _, name = model.partition(":")
            found = import_module(module)
            if not name:
                return
            model = getattr(found, name)
        if not isinstance(model, ModelSpec):
            raise TypeError(
                f"{model!r} is no signalbox_worker.models.ModelSpec; see docs/how_to/add_a_model.md"
            )
        if model.architecture != model_arch:
            raise ValueError(f"{model_arch!r} is registered with a spec of {model.architecture!r}")
        register_model(model)

    @staticmethod
    def get_supported_archs() -> Set[str]:
        """Returns the architectures with a model of their own here; see `model_impl`."""
        from signalbox_worker.models import architectures

        return architectures()
