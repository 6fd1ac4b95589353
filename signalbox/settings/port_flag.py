"""Meaning of `--port` in a command with two APIs: the HTTP API's port, as in vLLM.

Until version 0.1 it was the port of gRPC. If no other reading is possible it still is, with a
warning; the next release drops that.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from signalbox.settings.sources import SettingsError, Source

_GRPC = (
    "--port beside --http-port or --no-http is read as --grpc-port, in this release only;"
    " write --grpc-port"
)
_OFF = ("false", "no", "off", "f", "n", "0")


def is_off(sources: Iterable[Source]) -> bool:
    """Returns whether a source turns the HTTP API off; later ones take precedence."""
    serves = True
    for source in sources:
        if "http" in source.values:
            serves = str(source.values["http"]).lower() not in _OFF
    return not serves


def split_port(
    values: Mapping[str, Any], *, http_is_off: bool, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Returns one source's settings with `port` renamed to the setting that it means.

    A port of the HTTP API turns it on in a command where it is off by default.

    Args:
        tell: called with one line on how `port` is read, if not as the HTTP API's port.
    """
    if "port" not in values:
        return dict(values)
    rest = {name: value for name, value in values.items() if name != "port"}
    if "grpc_port" in rest and "http_port" in rest:
        raise SettingsError("--port and --http-port are both the HTTP API's port; give one")
    if "grpc_port" in rest and http_is_off:
        raise SettingsError("--port is the HTTP API's port, which --no-http turns off")
    if http_is_off or "http_port" in rest:
        tell(_GRPC)
        return {**rest, "grpc_port": values["port"]}
    return {"http": True, **rest, "http_port": values["port"]}
