"""Flags and environment choose how spans are sent over OTLP."""

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans

from signalbox_rpc.telemetry import otlp
from signalbox_rpc.telemetry.span_exporters import make_exporter


def test_the_environment_says_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_exporter("otlp"), GrpcSpans)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert isinstance(make_exporter("otlp"), HttpSpans)
    assert isinstance(make_exporter("otlp=http://127.0.0.1:1"), GrpcSpans)  # a flag beats it
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ValueError, match="PROTOCOL is 'http/json'; use grpc or http/protobuf"):
        make_exporter("otlp")


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://host", "http://"])
def test_what_is_no_url_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ValueError, match="use otlp-http=http://HOST:PORT"):
        make_exporter(f"otlp-http={url}")
    assert isinstance(make_exporter("otlp-http=https://host:4318"), HttpSpans)


def test_a_url_without_a_path_gets_the_signals() -> None:
    assert otlp.http_endpoint("http://a:1/") == "http://a:1/v1/traces"
    assert otlp.http_endpoint("http://a:1/x/y") == "http://a:1/x/y"
    assert otlp.http_endpoint("") is None


def test_a_time_limit_that_is_no_number_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wrong in ("abc", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", wrong)
        for kind in ("otlp", "otlp-http"):
            with pytest.raises(ValueError, match=f"OTLP_TIMEOUT is '{wrong}'; use seconds"):
                make_exporter(f"{kind}=http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1.5")
    assert isinstance(make_exporter("otlp-http=http://127.0.0.1:1"), HttpSpans)
