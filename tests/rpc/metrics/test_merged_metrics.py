"""The metrics of several services on one page: nothing twice, nothing added up, nothing lost."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from signalbox_rpc.metrics import metrics_socket
from signalbox_rpc.metrics.exposition import encode_openmetrics, encoder_for
from signalbox_rpc.metrics.merged_metrics import merged
from signalbox_rpc.metrics.metrics_socket import serving_socket
from signalbox_rpc.metrics.registry import PREFIXES, make_registry
from signalbox_rpc.metrics.sample import Sample, counter, histogram
from tests.rpc.metrics.test_registry import make_histogram
from tests.rpc.metrics.test_registry import read as read_router
from tests.waiting import EVENT_S


def read_worker() -> Iterator[Sample]:
    yield histogram("iteration_tokens_total", "Tokens of a step.", make_histogram(), worker="a")
    yield counter("tokens", "Tokens.", 5, model_name="m")
    yield counter("seconds", 'A name with "quotes".', 0.5, model_name='a"b\\c\nd')


def samples_of(families: object) -> set[tuple[object, ...]]:
    """Returns all samples but those of the process, which change between two looks."""
    return {
        (sample.name, tuple(sorted(sample.labels.items())), sample.value, str(sample.exemplar))
        for family in families  # type: ignore[attr-defined]
        for sample in family.samples
        if not family.name.startswith(("process_", "asyncio_"))
    }


@pytest.mark.parametrize("name", ["signalbox", "vllm"])
async def test_a_merged_page_has_each_sample_once_with_its_service(
    name: str, tmp_path: Path
) -> None:
    router, worker = (
        make_registry(read_router, prefix=name),
        make_registry(read_worker, prefix=name),
    )
    sockets = {"worker 0": str(tmp_path / "a"), "worker 1": str(tmp_path / "b")}
    prefix = PREFIXES[name]
    async with serving_socket(worker, sockets["worker 0"]):
        page = await merged(router, name="router", sources=sockets, prefix=prefix)
    for text in (generate_latest(page).decode(), encode_openmetrics(page).decode()):  # type: ignore[arg-type]
        types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(types) == len(set(types))
    shown = samples_of(text_string_to_metric_families(text))
    up = {(f"{prefix}service_up", (("service", one),), float(one != "worker 1"), "None")
          for one in ("router", "worker 0", "worker 1")}  # fmt: skip
    own: set[tuple[object, ...]] = set()
    for service, registry in (("router", router), ("worker 0", worker)):
        for sample in samples_of(registry.collect()):
            labels = tuple(sorted((*sample[1], ("service", service))))  # type: ignore[misc]
            own.add((sample[0], labels, *sample[2:]))
    assert shown == own | up
    assert "process_resident_memory_bytes" in text


@pytest.mark.parametrize(
    "accept", ["text/plain", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3"]
)
def test_vllms_names_keep_their_colon_in_every_format(accept: str) -> None:
    encode, content_type = encoder_for(accept)
    assert content_type.startswith(accept.partition(";")[0])
    text = encode(make_registry(read_worker, prefix="vllm")).decode()
    assert "vllm:tokens_total{" in text and "vllm_" not in text


async def test_a_reader_that_takes_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_socket, "WRITE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(metrics_socket, "encode_openmetrics", lambda _: b"a" * (32 << 20))
    path = str(tmp_path / "socket")
    async with serving_socket(CollectorRegistry(), path):
        reader, writer = await asyncio.open_unix_connection(path, limit=1024)
        await asyncio.sleep(1.0)
        async with asyncio.timeout(EVENT_S):
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read()) < 32 << 20
        writer.transport.abort()


async def test_a_socket_that_cannot_be_made_costs_no_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "missing" / "socket")
    async with serving_socket(CollectorRegistry(), path):
        assert path in caplog.text
