"""How OTLP is spoken: what a flag, or OTEL_EXPORTER_OTLP_* in the environment, says.

A signal is "traces" or "metrics"; the specification has variables of its own for each, which beat
those for all.
"""

import math
import os

EXPORT_TIMEOUT_S = 2.0
"""A collector that is down must not hold a shutdown for long."""
PROTOCOLS = ("grpc", "http/protobuf")


def uses_http(signal: str) -> bool:
    """Returns what the environment says of where no URL was given. Raises ValueError."""
    name, value = _variable(signal, "PROTOCOL")
    if value and value not in PROTOCOLS:
        raise ValueError(f"{name} is {value!r}; use {' or '.join(PROTOCOLS)}")
    return value.startswith("http")


def http_endpoint(url: str, signal: str) -> str | None:
    """Returns where to post to; None, which lets the SDK look, for "". Raises ValueError."""
    if not url:
        return None
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError(f"'otlp-http={url}' is no URL; use otlp-http=http://HOST:PORT")
    has_path = "/" in rest.rstrip("/")
    return url if has_path else f"{url.rstrip('/')}/v1/{signal}"


def timeout_s(signal: str) -> float:
    """Returns what the environment says, which Python's SDK reads as seconds. Raises ValueError."""
    name, value = _variable(signal, "TIMEOUT")
    if not value:
        return EXPORT_TIMEOUT_S
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} is {value!r}; use seconds, more than 0")
    return seconds


def _variable(signal: str, what: str) -> tuple[str, str]:
    """Returns the name and value of the first that is set; the value is "" if none is."""
    names = [f"OTEL_EXPORTER_OTLP_{part}{what}" for part in (f"{signal.upper()}_", "")]
    found = ((name, os.environ[name]) for name in names if os.environ.get(name))
    return next(found, (names[-1], ""))
