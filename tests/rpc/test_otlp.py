"""Flags and environment say of spans and of metrics alike how OTLP is spoken."""

from collections.abc import Callable

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcMetrics,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetrics,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans

from rpc import otel_metrics, otlp, span_exporters

Make = Callable[[str], object]
MAKERS = [
    (span_exporters.make_exporter, GrpcSpans, HttpSpans),
    (otel_metrics.make_exporter, GrpcMetrics, HttpMetrics),
]


@pytest.mark.parametrize(("make", "grpc_kind", "http_kind"), MAKERS)
def test_the_environment_says_the_protocol(
    make: Make, grpc_kind: type, http_kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(make("otlp"), grpc_kind)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert isinstance(make("otlp"), http_kind)
    assert isinstance(make("otlp=http://127.0.0.1:1"), grpc_kind)  # a flag beats it
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ValueError, match="PROTOCOL is 'http/json'; use grpc or http/protobuf"):
        make("otlp")


@pytest.mark.parametrize(("make", "_", "http_kind"), MAKERS)
@pytest.mark.parametrize("url", ["localhost:4318", "ftp://host", "http://"])
def test_what_is_no_url_is_refused_at_the_start(
    make: Make, _: type, http_kind: type, url: str
) -> None:
    with pytest.raises(ValueError, match="use otlp-http=http://HOST:PORT"):
        make(f"otlp-http={url}")
    assert isinstance(make("otlp-http=https://host:4318"), http_kind)


def test_a_url_without_a_path_gets_the_signals() -> None:
    assert otlp.http_endpoint("http://a:1/", "traces") == "http://a:1/v1/traces"
    assert otlp.http_endpoint("http://a:1/x/y", "metrics") == "http://a:1/x/y"
    assert otlp.http_endpoint("", "metrics") is None


@pytest.mark.parametrize(("make", "_", "http_kind"), MAKERS)
def test_a_time_limit_that_is_no_number_is_refused_by_its_name(
    make: Make, _: type, http_kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("abc", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", wrong)
        for kind in ("otlp", "otlp-http"):
            with pytest.raises(ValueError, match=f"OTLP_TIMEOUT is '{wrong}'; use seconds"):
                make(f"{kind}=http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1.5")
    assert isinstance(make("otlp-http=http://127.0.0.1:1"), http_kind)
