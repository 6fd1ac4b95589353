"""A step on the wire."""

from dataclasses import replace
from typing import Any

import pytest

from signalbox_contract.columns import int32s, int64s
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.drafts import DraftLimits
from signalbox_contract.step import NewSequence, Step, decode_step, encode_step
from signalbox_protos.worker.v1 import worker_pb2 as pb


def test_the_blocks_of_states_survive_the_wire_in_their_order() -> None:
    step = Step(epoch=1, step_id=2, states=((7, 3, 5), (2, 9, 4)))
    data = encode_step(step).SerializeToString()
    assert decode_step(pb.ExecuteModelRequest.FromString(data)).states == step.states


def make_new(**fields: Any) -> NewSequence:
    return NewSequence(
        seq_id=3,
        branch=0,
        token_ids=[1],
        num_prompt_tokens=1,
        num_computed_tokens=0,
        num_new_tokens=1,
        block_table=[0],
        num_samples=1,
        params=SamplingParams(),
        **fields,
    )


def test_sequences_that_return_logits_do_so_behind_the_wire() -> None:
    first = make_new()
    new = (first, replace(first, seq_id=4, returns_logits=True))
    data = encode_step(Step(epoch=1, step_id=2, new=new)).SerializeToString()
    assert decode_step(pb.ExecuteModelRequest.FromString(data)).new == new


def test_what_drafts_come_from_survives_the_wire() -> None:
    new = make_new(prediction=(5, 6), owner=b"\x07\x00")
    limits = DraftLimits(int64s([8, 9]), int32s([4, 1]))
    step = Step(epoch=1, step_id=2, new=(new,), draft_limits=limits)
    message = pb.ExecuteModelRequest.FromString(encode_step(step).SerializeToString())
    assert decode_step(message).draft_limits == limits
    (found,) = decode_step(message).new
    assert (found.prediction, found.owner) == (new.prediction, new.owner)
    message.draft_limits.most = limits.most.pack()[:4]
    with pytest.raises(InvalidArgument, match=r"draft_limits\.most"):
        decode_step(message)
