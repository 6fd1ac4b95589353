"""A collector in this process: takes OTLP over gRPC or HTTP, and keeps spans and metrics."""

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_pb_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Received(NamedTuple):
    """A span, and what it says of its service."""

    service: str
    span: Span


@dataclass
class Collector:
    """What has arrived so far."""

    url: str
    received: list[Received] = field(default_factory=list)
    metrics: dict[str, dict[str, Metric]] = field(default_factory=dict)
    """By service and name; the last ones."""

    def add_spans(self, request: pb.ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            service = service_of(resource.resource)
            for scope in resource.scope_spans:
                self.received += [Received(service, span) for span in scope.spans]

    def add_metrics(self, request: metrics_pb.ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            of_service = self.metrics.setdefault(service_of(resource.resource), {})
            for scope in resource.scope_metrics:
                of_service |= {metric.name: metric for metric in scope.metrics}


def service_of(resource: Resource) -> str:
    (name,) = [one.value.string_value for one in resource.attributes if one.key == "service.name"]
    return name


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    collector = Collector(f"http://127.0.0.1:{port}")

    class Servicer(pb_grpc.TraceServiceServicer):
        def Export(self, request: pb.ExportTraceServiceRequest, context: Any) -> Any:
            collector.add_spans(request)
            return pb.ExportTraceServiceResponse()

    class MetricsServicer(metrics_pb_grpc.MetricsServiceServicer):
        def Export(self, request: metrics_pb.ExportMetricsServiceRequest, context: Any) -> Any:
            collector.add_metrics(request)
            return metrics_pb.ExportMetricsServiceResponse()

    pb_grpc.add_TraceServiceServicer_to_server(Servicer(), server)
    metrics_pb_grpc.add_MetricsServiceServicer_to_server(MetricsServicer(), server)
    server.start()
    try:
        yield collector
    finally:
        server.stop(None)


@contextmanager
def http_collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            collector.add_spans(pb.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keeps the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
