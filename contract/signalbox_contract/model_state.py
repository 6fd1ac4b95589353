"""States of a model that a launcher loads and ends: for its plan, for routers, and for clients."""

from enum import StrEnum


class ModelState(StrEnum):
    """State of a model; model_launcher.proto says what each means."""

    UNLOADED = "unloaded"
    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    FAILED = "failed"
