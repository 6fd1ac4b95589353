"""OpenTelemetry's metrics of a generative model's server, as its conventions name them."""

from typing import Any

import grpc
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from protos.inference.v1 import inference_pb2 as pb
from router import genai_metrics
from tests.router.stack import make_generate, make_stack, saying


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    monkeypatch.setattr(genai_metrics.metrics, "get_meter", lambda name: meter)
    return reader


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    assert {metric.unit for metric in scope.metrics} == {"s"}
    return {metric.name: list(metric.data.data_points) for metric in scope.metrics}


async def test_a_request_is_told_once_with_the_attributes_of_the_conventions(
    reader: InMemoryMetricReader,
) -> None:
    async with make_stack(saying("a", "b", "c")) as stack:
        async for _ in stack.client.Generate(make_generate()):
            pass
        with pytest.raises(grpc.aio.AioRpcError):
            await stack.generate(sampling_params=pb.SamplingParams(top_p=7))
    found = points(reader)
    for name in ("time_to_first_token", "time_per_output_token"):
        (point,) = found[f"gen_ai.server.{name}"]
        assert point.count == 1
    well, refused = sorted(
        found["gen_ai.server.request.duration"], key=lambda point: "error.type" in point.attributes
    )
    assert well.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "signalbox",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
    }
    assert refused.attributes["error.type"] == "INVALID_ARGUMENT"
    first = found["gen_ai.server.time_to_first_token"][0]
    assert 0 < first.sum <= well.sum
