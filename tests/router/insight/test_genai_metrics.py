"""OpenTelemetry's histograms of a server of generative models, as Prometheus reads them."""

import grpc
import pytest
from prometheus_client.samples import Sample

from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.router.stack import Stack, make_generate, make_stack, saying

ATTRIBUTES = {
    "gen_ai_operation_name": "text_completion",
    "gen_ai_provider_name": "signalbox",
    "gen_ai_request_model": "tiny",
    "gen_ai_response_model": "tiny",
}


def samples(stack: Stack, name: str, part: str) -> list[Sample]:
    full_name = f"gen_ai_server_{name}_seconds"
    return [
        sample
        for family in stack.router.registry.collect()
        for sample in family.samples
        if sample.name == f"{full_name}_{part}"
    ]


async def test_a_request_is_counted_once_with_the_attributes_of_the_conventions() -> None:
    async with make_stack(saying("a", "b", "c")) as stack:
        async for _ in stack.client.Generate(make_generate()):
            pass
        with pytest.raises(grpc.aio.AioRpcError):
            await stack.generate(sampling_params=pb.SamplingParams(top_p=7))
        well, refused = samples(stack, "request_duration", "count")
        assert (well.value, well.labels) == (1, ATTRIBUTES | {"error_type": ""})
        assert refused.labels == ATTRIBUTES | {"error_type": "INVALID_ARGUMENT"}
        for name in ("time_to_first_token", "time_per_output_token"):
            (count,) = samples(stack, name, "count")
            assert (count.value, count.labels) == (1, ATTRIBUTES)
        (first,) = samples(stack, "time_to_first_token", "sum")
        assert 0 < first.value <= samples(stack, "request_duration", "sum")[0].value


async def test_the_bounds_are_those_of_the_conventions() -> None:
    async with make_stack(saying("a", "b")) as stack:
        async for _ in stack.client.Generate(make_generate()):
            pass
        bounds = {
            name: [sample.labels["le"] for sample in samples(stack, name, "bucket")]
            for name in ("request_duration", "time_to_first_token", "time_per_output_token")
        }
    assert bounds["request_duration"] == [
        *("0.01", "0.02", "0.04", "0.08", "0.16", "0.32", "0.64", "1.28", "2.56", "5.12"),
        *("10.24", "20.48", "40.96", "81.92", "+Inf"),
    ]
    assert bounds["time_to_first_token"] == [
        *("0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5"),
        *("0.75", "1", "2.5", "5", "7.5", "10", "+Inf"),
    ]
    assert bounds["time_per_output_token"] == [
        *("0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.4", "0.5"),
        *("0.75", "1", "2.5", "+Inf"),
    ]
