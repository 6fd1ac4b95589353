"""What is pooled, how, and to what vector, arrives as it was sent."""

import numpy as np
import pytest

from signalbox_contract import pooling, request, updates
from signalbox_contract.columns import pack_float32, pack_int32, pack_int64
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingModel, PoolingParams, Vector
from signalbox_contract.request import Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.pooling import decode_pooled, decode_pooling
from signalbox_contract.step import Step, decode_step, encode_step
from signalbox_contract.step_result import StepResult, decode_result, encode_result
from signalbox_contract.updates import PooledOutput, RequestUpdates
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_protos.worker.v1 import worker_pb2

MODEL = PoolingModel(
    task="embed",
    num_outputs=4,
    is_bidirectional=True,
    reads_all_tokens=True,
    activation="normalize",
    dimensions=(2, 3),
    num_token_outputs=5,
)
PARAMS = PoolingParams(num_first_segment_tokens=3, num_skipped_tokens=2)
PER_TOKEN = PoolingParams(is_per_token=True)


def vector(*values: float) -> Vector:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize("model", [MODEL, PoolingModel(task="classify", num_outputs=1)])
def test_a_model_arrives_as_it_was_sent(model: PoolingModel) -> None:
    data = pooling.encode_model(model).SerializeToString()
    assert pooling.decode_model(common_pb2.PoolingModel.FromString(data)) == model


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task": "draw"}, "pooling.task"),
        ({"activation": "softplus"}, "pooling.activation"),
        ({"num_outputs": 0}, "pooling.num_outputs"),
    ],
)
def test_a_model_of_a_later_version_is_refused(changes: dict[str, object], field: str) -> None:
    message = pooling.encode_model(MODEL)
    for name, value in changes.items():
        setattr(message, name, value)
    with pytest.raises(InvalidArgument) as raised:
        pooling.decode_model(message)
    assert raised.value.field == field


@pytest.mark.parametrize("params", [PARAMS, PER_TOKEN, PoolingParams(), None])
def test_a_request_says_how_its_prompt_is_pooled(params: PoolingParams | None) -> None:
    asked = Request(
        request_id="a",
        prompt_token_ids=[1, 2],
        params=SamplingParams(),
        max_tokens=1,
        pooling=params,
    )
    data = request.encode(asked).SerializeToString()
    assert request.decode(scheduler_pb2.Request.FromString(data)) == asked


def test_a_step_says_how_each_new_sequence_is_pooled() -> None:
    step = Step(epoch=1, step_id=2, pooling={7: PARAMS, 9: PER_TOKEN, 1 << 40: PoolingParams()})
    data = encode_step(step).SerializeToString()
    assert decode_step(worker_pb2.ExecuteModelRequest.FromString(data)) == step


@pytest.mark.parametrize("others", [{}, {9: vector(1, 2, 3)}])
def test_vectors_arrive_bit_by_bit(others: dict[int, Vector]) -> None:
    vectors = {7: vector(0.1, -0.0), **others, 1 << 40: vector(np.inf, 1e-45)}
    data = encode_result(StepResult(step_id=1, pooled=vectors)).SerializeToString()
    found = decode_result(worker_pb2.ExecuteModelResponse.FromString(data)).pooled
    assert {key: one.tobytes() for key, one in found.items()} == {
        key: one.tobytes() for key, one in vectors.items()
    }


def test_a_router_is_told_the_vectors() -> None:
    given = RequestUpdates(pooled=[PooledOutput(3, vector(1, 2)), PooledOutput(4, vector(3))])
    data = updates.encode(given).SerializeToString()
    found = updates.decode(scheduler_pb2.RequestUpdates.FromString(data)).pooled
    assert [(handle, one.tolist()) for handle, one in found] == [(3, [1, 2]), (4, [3])]


def test_columns_that_do_not_match_are_refused() -> None:
    message = worker_pb2.Pooling(
        seq_ids=pack_int64([1, 2]),
        num_first_segment_tokens=pack_int32([0, 0]),
        num_skipped_tokens=pack_int32([0]),
    )
    with pytest.raises(InvalidArgument, match="num_skipped_tokens"):
        decode_pooling(message)
    message.num_skipped_tokens = pack_int32([0, -1])
    with pytest.raises(InvalidArgument, match="num_skipped_tokens"):
        decode_pooling(message)
    message.num_skipped_tokens = pack_int32([0, 0])
    message.per_token_seq_ids = pack_int64([2, 3])
    with pytest.raises(InvalidArgument, match="per_token_seq_ids"):
        decode_pooling(message)


@pytest.mark.parametrize("values", [[], [1.0, 2.0, 3.0]])
def test_vectors_of_different_lengths_are_refused(values: list[float]) -> None:
    message = worker_pb2.Pooled(seq_ids=pack_int64([1, 2]), values=pack_float32(values))
    with pytest.raises(InvalidArgument, match=r"pooled\.values"):
        decode_pooled(message)
    for sizes, field in (([1], "num_values"), ([1, 1, 1], "num_values"), ([4, -1], "values")):
        message.num_values = pack_int32(sizes)
        with pytest.raises(InvalidArgument, match=rf"pooled\.{field}"):
            decode_pooled(message)
