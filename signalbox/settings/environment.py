"""Names of our environment variables. It imports little, because probes load it too."""

import re
from collections.abc import Iterable

from signalbox_rpc.lifetime.parent import PARENT_PID

ENV_PREFIX = "SIGNALBOX_"
VLLM_PREFIX = "VLLM_"
ISA_VARIABLE = f"{ENV_PREFIX}ISA"
"""The variable of the CPU kernels, which only a worker has."""

_TLS = ("TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME")
CLIENT_VARIABLES = frozenset(("ADDRESS", "API_KEY", "DEBUG", "ROUTER", "SCHEDULER", *_TLS))
"""Variables, without the prefix, that commands which call a service read."""
PROCESS_NAME, NEWS_FD = f"{ENV_PREFIX}PROCESS_NAME", f"{ENV_PREFIX}NEWS_FD"
"""Variables that `serve` sets for its child processes, beside PARENT_PID."""
OTHER_VARIABLES = frozenset(("CONFIG", "ISA")) | {
    name.removeprefix(ENV_PREFIX) for name in (PARENT_PID, PROCESS_NAME, NEWS_FD)
}
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
