"""Structured outputs that are costly to compile, or whose masks are costly."""

import asyncio
import json

from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.hostile.case import Answer, Case, Target

NUM_SCHEMAS = 64
DIVISOR = 20_011
"""Compiling such a schema of 40 bytes takes a tenth of a second and 15 MB; the cost follows it."""
AMBIGUOUS = "start: e\ne: e e | /[a-z ]/ | /[ -~]/\n"
"""Compiles in milliseconds; each token makes the next mask costlier, to 100 ms after fifty."""
NUM_MASKS = 4
NUM_TOKENS = 80


def constrained(structured_output: pb.StructuredOutput, **fields: int) -> bytes:
    params = pb.SamplingParams(structured_output=structured_output, **fields)
    return pb.GenerateRequest(text="a", sampling_params=params).SerializeToString()


async def many_schemas(target: Target) -> list[Answer]:
    """Refused at first, so that only the verdicts are known; then all at once."""
    schemas = [
        json.dumps({"type": "integer", "multipleOf": DIVISOR + 2 * i}) for i in range(NUM_SCHEMAS)
    ]
    outputs = [pb.StructuredOutput(json_schema=schema) for schema in schemas]
    answers: list[Answer] = []
    for fields in ({"max_tokens": 1, "min_tokens": 2}, {"max_tokens": 3}):
        asked = (target.grpc("Generate", constrained(one, **fields)) for one in outputs)
        answers += await asyncio.gather(*asked)
    return answers


async def dear_masks(target: Target) -> list[Answer]:
    """They end by what one mask takes, or by what all of a step take."""
    output = pb.StructuredOutput(grammar=AMBIGUOUS)
    one = constrained(output, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    asked = (target.grpc("Generate", one) for _ in range(NUM_MASKS))
    return list(await asyncio.gather(*asked))


CASES = (
    Case(
        name="64-schemas-that-are-costly-to-compile",
        is_long=True,
        attack=many_schemas,
        codes=frozenset({"INVALID_ARGUMENT", "OK"}),
        says="min_tokens",
    ),
    Case(
        name="a-grammar-whose-masks-are-costly",
        attack=dear_masks,
        codes=frozenset({"FAILED_PRECONDITION"}),
        says=" ms",
        unbounded={
            "signalbox_worker.sampling.compiled_grammar.MAX_MASK_CPU_S": 1e9,
            "signalbox_worker.sampling.grammar_masks.MAX_STEP_CPU_S": 1e9,
        },
    ),
)
