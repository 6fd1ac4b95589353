"""Exports what attention backends of packages need; the modules are in `models/attention/`."""

from signalbox_worker.models.attention import *  # noqa: F403
from signalbox_worker.models.attention import __all__ as __all__
