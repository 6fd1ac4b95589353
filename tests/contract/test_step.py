"""A step on the wire."""

from signalbox_contract.step import Step, decode_step, encode_step
from signalbox_protos.worker.v1 import worker_pb2 as pb


def test_the_blocks_of_states_survive_the_wire_in_their_order() -> None:
    step = Step(epoch=1, step_id=2, states=((7, 3, 5), (2, 9, 4)))
    data = encode_step(step).SerializeToString()
    assert decode_step(pb.ExecuteModelRequest.FromString(data)).states == step.states
