"""Merges the metrics of several services of one machine into one page, for `signalbox serve`.

Families of the same name become one, with one HELP and one TYPE; a label `service` tells the
samples apart. Nothing is summed, so a number that one service counts appears once.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from signalbox_rpc.metrics.metrics_socket import read_socket

LABEL = "service"


@dataclass(frozen=True, slots=True)
class Snapshot(Collector):
    """Families that were collected earlier, as a collector for an encoder."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        return iter(self.families)


async def merged(
    registry: CollectorRegistry, *, name: str, sources: Mapping[str, str], prefix: str
) -> Snapshot:
    """Returns the current metrics of this service and of the others.

    Args:
        name: this service's value of the label.
        sources: the other services' sockets by label value; see `metrics_socket`.
        prefix: begins the name of the gauge service_up, which is 0 for services that do not answer.
    """
    texts = await asyncio.gather(*map(read_socket, sources.values()), return_exceptions=True)
    up = GaugeMetricFamily(
        f"{prefix}service_up", "1 if the service has told its metrics.", labels=[LABEL]
    )
    shown = [(name, list(registry.collect()))]
    for service, text in zip(sources, texts, strict=True):
        up.add_metric([service], isinstance(text, str))
        if isinstance(text, str):
            shown.append((service, await asyncio.to_thread(_families, text)))
        elif not isinstance(text, OSError | ValueError):  # a timeout is an OSError
            raise text
    up.add_metric([name], 1)
    return Snapshot((*_joined(shown), up))


def _families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def _joined(shown: Iterable[tuple[str, Iterable[Metric]]]) -> Iterator[Metric]:
    by_name: dict[str, Metric] = {}
    for service, families in shown:
        for family in families:
            known = by_name.get(family.name)
            if known is None:
                known = Metric(family.name, family.documentation, family.type, family.unit)
                by_name[family.name] = known
            known.samples += [
                sample._replace(labels={**sample.labels, LABEL: service})
                for sample in family.samples
            ]
    return iter(by_name.values())
