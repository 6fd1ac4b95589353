"""Reads the options of OTLP exporters from flags and from OTEL_EXPORTER_OTLP_* in the environment.

OTEL_EXPORTER_OTLP_TRACES_* take precedence.
"""

import math
import os

EXPORT_TIMEOUT_S = 2.0
"""Seconds for an export; a collector that is down must not delay a shutdown for long."""
PROTOCOLS = ("grpc", "http/protobuf")


def uses_http() -> bool:
    """Returns whether the environment asks for HTTP where no URL was given. Raises ValueError."""
    name, value = _variable("PROTOCOL")
    if value and value not in PROTOCOLS:
        raise ValueError(f"{name} is {value!r}; use {' or '.join(PROTOCOLS)}")
    return value.startswith("http")


def http_endpoint(url: str) -> str | None:
    """Returns the URL to post to; None for "", which lets the SDK choose. Raises ValueError."""
    if not url:
        return None
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError(f"'otlp-http={url}' is no URL; use otlp-http=http://HOST:PORT")
    has_path = "/" in rest.rstrip("/")
    return url if has_path else f"{url.rstrip('/')}/v1/traces"


def timeout_s() -> float:
    """Returns the environment's timeout, in seconds as Python's SDK reads it. Raises ValueError."""
    name, value = _variable("TIMEOUT")
    if not value:
        return EXPORT_TIMEOUT_S
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} is {value!r}; use seconds, more than 0")
    return seconds


def _variable(what: str) -> tuple[str, str]:
    """Returns the name and value of the first variable that is set; the value is "" if none is."""
    names = [f"OTEL_EXPORTER_OTLP_{part}{what}" for part in ("TRACES_", "")]
    found = ((name, os.environ[name]) for name in names if os.environ.get(name))
    return next(found, (names[-1], ""))
