"""Beam search through router, scheduler and simulated workers, over real gRPC.

The simulated worker reads its log probabilities through the block tables, so that a wrong block map
or a lost copy changes what a search finds.
"""

import asyncio

import grpc
import pytest

from signalbox_contract.request import BeamSearchParams
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from signalbox_scheduler.requests.beam_search import BeamSearch, Candidates, Hypothesis
from signalbox_worker.runner.loading.byte_tokenizer import END_OF_SEQUENCE_ID
from tests.integration.stack import (
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.integration.test_stack import Answer, ask, decode, make_request, make_stack
from tests.simulated_model import expected_logprobs, expected_tokens
from tests.waiting import eventually

STOPS = [END_OF_SEQUENCE_ID, *range(5, 512, 40)]
PROMPTS = [[7 * i % 250 + j for j in range(3 + 5 * i)] for i in range(8)]


def found(
    prompt: list[int],
    *,
    width: int,
    max_tokens: int,
    stops: list[int] = STOPS,
    length_penalty: float = 1.0,
    early_stopping: bool = False,
) -> list[Hypothesis]:
    """The result of a search that no other request disturbs."""
    params = BeamSearchParams(
        width=width, length_penalty=length_penalty, early_stopping=early_stopping
    )
    search = BeamSearch(params, stop_token_ids=stops)
    while not search.is_done:
        candidates = [
            Candidates(*expected_logprobs(prompt + beam.token_ids, num=search.num_candidates))
            for beam in search.live
        ]
        search.advance(candidates, max_tokens=max_tokens)
    return search.finished


def make_beams(prompt: list[int], *, n: int = 2, max_tokens: int = 14, **search: object) -> object:
    return make_request(
        prompt,
        n=n,
        max_tokens=max_tokens,
        ignore_eos=False,
        stop_token_ids=STOPS[1:],
        beam_search=pb.BeamSearch(**{"width": 4} | search),
    )


def assert_found(answer: Answer, expected: list[Hypothesis]) -> None:
    assert answer.token_ids == {i: one.token_ids for i, one in enumerate(expected)}
    assert [answer.finish[i].score for i in sorted(answer.finish)] == pytest.approx(
        [one.score for one in expected]
    )
    for index, one in enumerate(expected):
        *before, last = one.token_ids
        is_stop = last in STOPS
        assert answer.text[index] == decode(before if is_stop else one.token_ids)
        finish = answer.finish[index]
        if not is_stop:
            assert finish.reason == pb.FINISH_REASON_LENGTH
            continue
        is_eos = last == END_OF_SEQUENCE_ID
        assert finish.stop_token_id == last
        assert finish.reason == (pb.FINISH_REASON_STOP if is_eos else pb.FINISH_REASON_STOP_TOKEN)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(one.token_ids) for one in expected)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    ("num_gpu_blocks", "num_cpu_blocks", "mode"),
    [
        (1000, 0, PreemptionMode.AUTO),
        (24, 0, PreemptionMode.RECOMPUTE),
        (24, 100, PreemptionMode.SWAP),
        (24, 12, PreemptionMode.SWAP),
    ],
)
async def test_searches_beside_other_requests_find_what_they_do_alone(
    num_workers: int, num_gpu_blocks: int, num_cpu_blocks: int, mode: PreemptionMode
) -> None:
    config = SchedulerConfig(port=0, preemption_mode=mode, watermark=0.0)
    worker = {"block_size": 8, "max_num_batched_tokens": 48}
    async with make_stack(
        num_workers=num_workers,
        config=config,
        num_gpu_blocks=num_gpu_blocks,
        num_cpu_blocks=num_cpu_blocks,
        **worker,
    ) as stack:
        searches = [
            ask(stack.stub, make_beams(prompt, n=1 + i % 4, early_stopping=i % 2 == 0))
            for i, prompt in enumerate(PROMPTS)
        ]
        others = [ask(stack.stub, make_request(prompt, max_tokens=20)) for prompt in PROMPTS]
        answers = await asyncio.gather(*searches, *others)
        for i, (answer, prompt) in enumerate(zip(answers, PROMPTS * 2, strict=True)):
            if i >= len(PROMPTS):
                assert answer.token_ids[0] == expected_tokens(prompt, num_tokens=20)
                continue
            expected = found(prompt, width=4, max_tokens=14, early_stopping=i % 2 == 0)
            assert_found(answer, expected[: 1 + i % 4])
        step_loops = stack.scheduler.cluster.step_loops
        pressed = any(step_loop.scheduler.preemption.num_preemptions for step_loop in step_loops)
        assert pressed is (num_gpu_blocks < 100)


BEAMS = scheduler_pb2.BeamSearchParams(width=2)
ANY = common_pb2.StructuredOutput(json_object=common_pb2.JsonObject())


def params(**fields: object) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(top_p=1.0, **fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"beam_search": scheduler_pb2.BeamSearchParams(width=0)}, "beam_search.width"),
        ({"beam_search": scheduler_pb2.BeamSearchParams(width=33)}, "beam_search.width"),
        (
            {"beam_search": scheduler_pb2.BeamSearchParams(width=2, length_penalty=float("nan"))},
            "beam_search.length_penalty",
        ),
        ({"beam_search": BEAMS, "num_sequences": 3}, "num_sequences"),
        ({"beam_search": BEAMS, "sampling_params": params(num_logprobs=0)}, "num_logprobs"),
        ({"beam_search": BEAMS, "sampling_params": params(presence_penalty=1)}, "presence_penalty"),
        ({"beam_search": BEAMS, "sampling_params": params(structured_output=ANY)}, "structured"),
        (
            {"beam_search": BEAMS, "sampling_params": params(stop_token_ids=list(range(127)))},
            "stop_token_ids",
        ),
    ],
)
async def test_searches_that_no_router_of_ours_asks_for_are_refused_alone(
    fields: dict[str, object], named: str
) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated()),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        await client.add(1, [1, 2, 3])
        await client.add(2, [1, 2, 3], **fields)
        good, refused = await client.ended(1, 2)
        assert refused.end is not None
        assert refused.end.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert named in refused.end.message
        assert good.tokens[0] == expected_tokens([1, 2, 3], num_tokens=16)
