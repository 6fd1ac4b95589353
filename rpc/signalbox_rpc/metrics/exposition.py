"""Encodes a scrape's answer: Prometheus' text format, or OpenMetrics if it is asked for."""

from collections.abc import Callable
from functools import partial

from prometheus_client import exposition, openmetrics
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.registry import Collector

Encode = Callable[[Collector], bytes]
# The library's default replaces the colon of "vllm:" in the names of samples, not in that of their
# family. It changes nothing else, for all of our names are valid in the oldest format.
encode_openmetrics: Encode = partial(openmetrics.exposition.generate_latest, escaping=ALLOWUTF8)


def encoder_for(accept: str) -> tuple[Encode, str]:
    """Returns the encoder for an Accept header, and the content type."""
    encode, content_type = exposition.choose_encoder(accept)
    if content_type.startswith("application/openmetrics-text"):
        return encode_openmetrics, content_type
    return encode, content_type
