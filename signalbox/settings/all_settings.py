"""The settings of all services, and their names.

A process that runs one service imports this only for an error, or to check a file or variables.
"""

import re

from signalbox.settings.serve_settings import ServeCommandSettings
from signalbox_router.config import RouterSettings
from signalbox_rpc.settings.service_settings import Settings
from signalbox_scheduler.config import SchedulerSettings
from signalbox_worker.service.worker_settings import WorkerSettings

SERVICES: tuple[type[Settings], ...] = (
    ServeCommandSettings,
    RouterSettings,
    SchedulerSettings,
    WorkerSettings,
)
KNOWN = {field for service in SERVICES for field in service.model_fields}
"""Names of all settings: one file may serve several commands, so it may have any service's."""
_NAMES = "|".join(sorted((name for name in KNOWN if "_" in name), key=len, reverse=True))
# A name of one word counts as a field only at a message's start: "device is 'cuda', but".
# Within a path, or before a suffix, such as generation_config.json, it is a file's.
FIELD = re.compile(rf"(?<![\w/-])(?:{_NAMES})(?!\w|\.\w)|\A(?:device|dtype|quantization)(?= is )")
"""A field's name in a message."""
