"""Everything that can be set, from flags, environment and a YAML file alike.

A flag beats the environment (SIGNALBOX_HTTP_PORT for --http-port), which beats the file
(`http_port:`), which beats the default. What vLLM calls EngineArgs: a setting is one field of the
service that it is for; `signalbox.configs` makes the services' frozen configuration objects of it.
"""

from signalbox.settings.base import (
    CONFIG_FILE,
    InnerSettings,
    Settings,
    TelemetrySettings,
    TlsSettings,
    flag_name,
)
from signalbox.settings.loading import SERVICES, load
from signalbox.settings.router import RouterSettings
from signalbox.settings.scheduler import SchedulerSettings
from signalbox.settings.serve import DemoSettings, RunSettings, ServeSettings
from signalbox.settings.sources import SettingsError
from signalbox.settings.worker import WorkerSettings

__all__ = [
    "CONFIG_FILE",
    "SERVICES",
    "DemoSettings",
    "InnerSettings",
    "RouterSettings",
    "RunSettings",
    "SchedulerSettings",
    "ServeSettings",
    "Settings",
    "SettingsError",
    "TelemetrySettings",
    "TlsSettings",
    "WorkerSettings",
    "flag_name",
    "load",
]
