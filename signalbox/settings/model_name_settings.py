"""The names of the model, which a worker gives and a router takes."""

from typing import ClassVar

from pydantic import Field

from signalbox.settings.base_settings import TelemetrySettings
from signalbox.settings.values.quantities import Texts


class NameSettings(TelemetrySettings):
    """Names of the served model: a worker uses the first one, a router accepts all of them."""

    GROUP: ClassVar[str] = "model and device"

    served_model_name: Texts = Field(
        (),
        description="names that requests may use for the model; the first is in answers and metrics"
        " (default: one made from MODEL)",
    )
