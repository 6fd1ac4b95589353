"""Structured outputs of the demo model through router, scheduler and worker, with room and without.

In float32 and with seeds, so that a preemption in the middle of a text must change nothing of it.
"""

import asyncio
import json
import re
from typing import Any

import jsonschema
import pytest

from gpu_worker.runner.model_runner import ModelRunner
from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc as pb_grpc
from scheduler_svc.config import PreemptionMode, SchedulerConfig
from tests.integration.demo_model.test_model_parity import make_stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(600), pytest.mark.xdist_group("demo")]

MAX_TOKENS = 90
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 5, "maxLength": 15},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]{8,12}$"},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SERIAL = "([A-F0-9]{8}-){3}[A-F0-9]{8}"
CHOICES = ["a long way to Tipperary, " * 2, "a short way to Tipperary, " * 2]


def make_constraints() -> list[pb.StructuredOutput]:
    return [
        pb.StructuredOutput(json_schema=json.dumps(PERSON)),
        pb.StructuredOutput(regex=SERIAL),
        pb.StructuredOutput(grammar='root ::= ([a-z] [a-z] "+"){15} "0"'),
        pb.StructuredOutput(choice=pb.Choice(choices=CHOICES)),
    ]


def conforms(text: str, constraint: pb.StructuredOutput) -> bool:
    match constraint.WhichOneof("constraint"):
        case "json_schema":
            schema: Any = json.loads(constraint.json_schema)
            return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))
        case "regex":
            return re.fullmatch(constraint.regex, text) is not None
        case "grammar":
            return re.fullmatch(r"([a-z]{2}\+){15}0", text) is not None
    return text in constraint.choice.choices


async def generate(
    stub: pb_grpc.InferenceServiceStub, seed: int, constraint: pb.StructuredOutput
) -> tuple[str, int]:
    """Returns the text and why it ended."""
    params = pb.SamplingParams(
        temperature=1, seed=seed, max_tokens=MAX_TOKENS, structured_output=constraint
    )
    request = pb.GenerateRequest(text=f"Example {seed}: ", sampling_params=params)
    text, reason = "", 0
    async for response in stub.Generate(request):
        for output in response.outputs:
            text += output.text
            reason = output.finish.reason or reason
    return text, reason


async def generate_all(stub: pb_grpc.InferenceServiceStub) -> list[tuple[str, int]]:
    asked = enumerate(make_constraints())
    return await asyncio.gather(*(generate(stub, seed, one) for seed, one in asked))


def make_config(mode: PreemptionMode) -> SchedulerConfig:
    return SchedulerConfig(
        port=0,
        num_gpu_blocks_override=8,
        watermark=0,
        preemption_mode=mode,
        prefix_caching=False,
    )


async def test_preemption_in_the_middle_changes_no_text(runner: ModelRunner) -> None:
    async with make_stack([runner], SchedulerConfig(port=0)) as (cluster, stub):
        expected = await generate_all(stub)
        assert cluster.step_loops[0].scheduler.preemption.num_preemptions == 0
    for (text, reason), constraint in zip(expected, make_constraints(), strict=True):
        assert reason == pb.FINISH_REASON_STOP, text
        assert conforms(text, constraint), text
    for mode in (PreemptionMode.SWAP, PreemptionMode.RECOMPUTE):
        async with make_stack([runner], make_config(mode)) as (cluster, stub):
            scheduler = cluster.step_loops[0].scheduler
            for _ in range(20):  # a busy machine may let one end before the next begins
                assert await generate_all(stub) == expected, mode
                if scheduler.preemption.num_preemptions > 0:
                    break
            assert scheduler.preemption.num_preemptions > 0
            swapped = scheduler.preemption.num_preemptions - scheduler.preemption.num_recomputes
            assert (swapped > 0) is (mode is PreemptionMode.SWAP)
