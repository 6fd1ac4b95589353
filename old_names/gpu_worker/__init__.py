"""The old name of `signalbox_worker`, for one release: of it what the documentation promised."""

import sys
import warnings

from signalbox_worker import attention, layers, models
from signalbox_worker.models import llama

warnings.warn(
    "import from signalbox_worker; its old name gpu_worker goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules.update(
    {
        f"{__name__}.attention": attention,
        f"{__name__}.layers": layers,
        f"{__name__}.models": models,
        f"{__name__}.models.llama": llama,
    }
)
