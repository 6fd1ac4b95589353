"""Names of our environment variables. It imports nothing, because probes load it too."""

import re
from collections.abc import Iterable

ENV_PREFIX = "SIGNALBOX_"
VLLM_PREFIX = "VLLM_"

_TLS = ("TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME")
CLIENT_VARIABLES = frozenset(("ADDRESS", "API_KEY", "DEBUG", "ROUTER", "SCHEDULER", *_TLS))
"""Variables, without the prefix, that commands which call a service read."""
CHILD_VARIABLES = ("PARENT_PID", "PROCESS_NAME", "NEWS_FD")
"""Variables, without the prefix, that `serve` sets for its child processes."""
OTHER_VARIABLES = frozenset(("CONFIG", "ISA", *CHILD_VARIABLES))
"""Variables, without the prefix, that are not settings of a service."""

_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")


def own_variables(environment: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the variables with our prefix, without it.

    Kubernetes sets more for a Service whose name begins with ours, unless the pod disables that;
    these are left out.
    """
    ours = {
        name.removeprefix(ENV_PREFIX): value
        for name, value in environment
        if name.startswith(ENV_PREFIX)
    }
    return {
        name: value
        for name, value in ours.items()
        if not _SERVICE_LINK.search(name) and not value.startswith(("tcp://", "udp://"))
    }
