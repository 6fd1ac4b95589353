"""What Prometheus reads, and where: at a port that is refused if others reach it unprotected."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from signalbox_rpc.http import port_limits
from signalbox_rpc.metrics.histogram import Histogram
from signalbox_rpc.metrics.registry import MetricsConfig, make_registry
from signalbox_rpc.metrics.sample import Sample, counter, gauge, gauges, histogram
from signalbox_rpc.metrics.serving_metrics import serving_metrics
from signalbox_rpc.transport.listening_ports import BindError, PortInUse
from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from tests.rpc.certificates import Authority
from tests.rpc.http.http_parsers import accepted
from tests.rpc.http.test_acceptor import connections
from tests.rpc.http.test_client_connection import say, status_of
from tests.waiting import EVENT_S


def make_histogram() -> Histogram:
    values = Histogram((1_000, 10_000))
    values.observe(500, times=3)
    values.observe(5_000, trace_id="a" * 32)
    values.observe(50_000)
    return values


def read() -> Iterator[Sample]:
    yield from gauges("running", "Running.", {"a": 2, "b": 3}, by="worker", model_name="m")
    yield counter("tokens", "Tokens.", 7, model_name="m")
    yield histogram("time_seconds", "Time.", make_histogram(), model_name="m")._replace(unit=1e-3)


@pytest.mark.parametrize(
    "other", [counter("running", "Running.", 1, worker="b"), gauge("running", "Running.", 1)]
)
def test_samples_of_one_name_that_differ_are_no_metric(other: Sample) -> None:
    registry = make_registry(lambda: [gauge("running", "Running.", 1, worker="a"), other])
    with pytest.raises(ValueError, match="samples of running differ in kind or labels"):
        generate_latest(registry)


def test_families_are_what_the_service_says_when_it_is_asked() -> None:
    text = generate_latest(make_registry(read)).decode()
    assert 'signalbox_running{model_name="m",worker="b"} 3.0' in text
    assert text.count("# TYPE signalbox_running gauge") == 1
    assert 'signalbox_tokens_total{model_name="m"} 7.0' in text
    buckets = {
        line.split('le="')[1].split('"')[0]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("signalbox_time_seconds_bucket")
    }
    assert buckets == {"1": 3, "10": 4, "+Inf": 5}
    assert 'signalbox_time_seconds_sum{model_name="m"} 56.5' in text


def test_a_prefix_gives_vllms_names() -> None:
    text = generate_latest(make_registry(read, prefix="vllm")).decode()
    assert 'vllm:running{model_name="m",worker="a"} 2.0' in text
    assert "signalbox_" not in text


def test_a_bucket_names_the_trace_of_a_value_in_it() -> None:
    text = generate_openmetrics(make_registry(read)).decode()
    (line,) = [line for line in text.splitlines() if "trace_id" in line]
    assert 'le="10"' in line
    assert line.endswith(f'# {{trace_id="{"a" * 32}"}} 5.0')


async def test_the_port_serves_metrics_and_nothing_else() -> None:
    async with (
        serving_metrics(MetricsConfig(port=0), read, host="127.0.0.1", tls=CLEAR) as server,
        httpx2.AsyncClient() as client,
    ):
        assert server is not None
        answer = await client.get(f"http://{server.address}/metrics")
        assert "signalbox_tokens_total" in answer.text
        assert "process_cpu_seconds_total" in answer.text
        assert (await client.get(f"http://{server.address}/")).status_code == 404
        assert (await client.post(f"http://{server.address}/metrics")).status_code == 404
        taken = MetricsConfig(port=server.port)
        with pytest.raises(PortInUse, match="choose another --metrics-port"):
            async with serving_metrics(taken, read, host="127.0.0.1", tls=CLEAR):
                pass


async def test_the_port_bounds_its_clients_as_that_of_the_api_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    get = b"GET /metrics HTTP/1.1\r\nConnection: close\r\n"
    config = MetricsConfig(port=0, allowed_hosts=("scheduler",))
    async with serving_metrics(config, read, host="127.0.0.1", tls=CLEAR) as server:
        assert server is not None
        for rest, status in (
            (b"Host: localhost\r\n\r\n", 200),
            (b"Host: scheduler:9464\r\n\r\n", 200),
            (b"Host: evil.example\r\n\r\n", 403),
            (b"Host: localhost\r\nOrigin: https://evil.example\r\n\r\n", 403),
            (b"Host: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n", 403),
            (b"Host: localhost\r\n" + b"a: b\r\n" * 10_000, 431),
        ):
            assert status_of(await say(server.port, get + rest)) == status, rest[:60]
        async with accepted(server.port) as (reader, writer):
            with monkeypatch.context() as hurried:
                hurried.setattr(port_limits, "HEAD_S", 0.3)
                writer.write(get)
                async with asyncio.timeout(EVENT_S):
                    assert status_of(await reader.readline()) == 408
        async with connections(server.port, port_limits.METRICS_CONNECTIONS + 10, b"GET"):
            assert status_of(await say(server.port, get + b"Host: localhost\r\n\r\n")) == 200


async def test_without_a_port_nothing_listens() -> None:
    async with serving_metrics(MetricsConfig(), read, host="127.0.0.1", tls=CLEAR) as server:
        assert server is None


async def test_a_port_that_others_reach_is_refused_in_the_clear() -> None:
    config = MetricsConfig(port=0)
    with pytest.raises(BindError, match="--tls-client-ca, or --insecure"):
        async with serving_metrics(config, read, host="0.0.0.0", tls=CLEAR):
            pass
    insecure = TlsConfig(insecure=True)
    async with serving_metrics(config, read, host="0.0.0.0", tls=insecure) as server:
        assert server is not None


async def test_with_an_authority_for_clients_only_those_that_it_vouches_for_may_read(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    tls = authority.member("scheduler")
    config = MetricsConfig(port=0)
    async with serving_metrics(config, read, host="127.0.0.1", tls=tls) as server:
        assert server is not None
        url = f"https://{server.address}/metrics"
        for knows_us in (False, True):
            context = ssl.create_default_context(cafile=tls.ca)
            context.check_hostname = False
            if knows_us:
                operator = authority.member("operator")
                assert operator.cert is not None
                context.load_cert_chain(operator.cert, operator.key)
            async with httpx2.AsyncClient(verify=context) as client:
                if knows_us:
                    assert (await client.get(url)).status_code == 200
                else:
                    with pytest.raises(httpx2.HTTPError):
                        await client.get(url)
