"""Exports what models of packages need; the modules are in `models/layers/`."""

from signalbox_worker.models.layers import *  # noqa: F403
from signalbox_worker.models.layers import __all__ as __all__
