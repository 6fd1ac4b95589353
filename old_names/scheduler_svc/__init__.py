"""The old name of `signalbox_scheduler`, for one release: of it what the documentation promised."""

import sys
import warnings

from signalbox_scheduler import queue
from signalbox_scheduler.queue import policies

warnings.warn(
    "import from signalbox_scheduler; its old name scheduler_svc goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules.update({f"{__name__}.queue": queue, f"{__name__}.queue.policies": policies})
