"""What a worker announces, and what a scheduler refuses of it."""

from dataclasses import replace
from typing import Any

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup, describe_groups, num_tokens_in
from signalbox_contract.model import (
    MAX_BLOCKS,
    Adapter,
    ModelInfo,
    Numerics,
    StoreCapacity,
    WorkerCapacity,
    WorkerRank,
    decode_capacity,
    decode_model,
    encode_capacity,
    encode_model,
)
from signalbox_contract.pooling import PoolingModel
from signalbox_contract.sampling_defaults import DefaultParams, SamplingDefaults
from signalbox_protos.common.v1 import common_pb2 as pb

MODEL = ModelInfo(
    name="tiny",
    architecture="LlamaForCausalLM",
    dtype="float32",
    vocab_size=512,
    max_model_len=64,
    eos_token_ids=(2, 7),
    tokenizer_sha256="ab",
    sampling_defaults=SamplingDefaults(model=DefaultParams(top_k=3)),
    fingerprint="cd",
    numerics=Numerics(factors="int8", kernels="native amx", kv_cache_dtype="bfloat16"),
    adapters=(Adapter(name="mine", sha256="ef", path="/a", loaded_at_ns=5, is_leaving=True),),
    pooling=PoolingModel(task="classify", num_outputs=3, activation="softmax"),
    started_as=("org/tiny:Q8_0",),
)
CAPACITY = WorkerCapacity(
    block_size=16,
    num_gpu_blocks=8,
    num_cpu_blocks=2,
    block_bytes=32,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    copy_bytes_per_s=5e9,
    prefill_tokens_per_s=900.0,
    tensor_parallel_size=2,
    grammar_bytes=1 << 20,
    max_steps_in_flight=2,
    ranks=(
        WorkerRank(
            rank=1,
            stage=2,
            tensor_parallel_rank=3,
            host="a",
            address="10.0.0.1:50101",
            first_layer=4,
            num_layers=5,
        ),
    ),
    block_format="simulated, 16",
    max_draft_tokens=4,
    arithmetic="0123456789abcdef" * 4,
    groups=(
        CacheGroup(layers=(0, 2)),
        CacheGroup(layers=(1, 3)),
    ),
    store=StoreCapacity(
        kind="disk",
        read_bytes_per_s=2e9,
        max_write_bytes_per_s=100 << 20,
    ),
)
STATES = CacheGroup(kind="state", state_blocks=2)


def test_a_model_survives_the_wire() -> None:
    data = encode_model(MODEL).SerializeToString()
    decoded = decode_model(pb.ModelInfo.FromString(data))
    assert repr(decoded) == repr(MODEL)  # with the fields that equality of models leaves out


def test_a_model_without_numerics_has_none_behind_the_wire() -> None:
    data = encode_model(replace(MODEL, numerics=None)).SerializeToString()
    assert decode_model(pb.ModelInfo.FromString(data)).numerics is None


def test_a_capacity_survives_the_wire_without_the_activations() -> None:
    data = encode_capacity(replace(CAPACITY, activations_bytes=9)).SerializeToString()
    assert decode_capacity(pb.WorkerCapacity.FromString(data)) == CAPACITY


def test_windows_survive_the_wire() -> None:
    window = CacheGroup(kind="window", window=512, layers=(1, 3))
    capacity = replace(CAPACITY, groups=(CacheGroup(layers=(0, 2)), window))
    assert decode_capacity(encode_capacity(capacity)) == capacity
    capacity.check()


def test_states_survive_the_wire() -> None:
    states = CacheGroup(kind="state", state_blocks=3, layers=(1, 3))
    capacity = replace(CAPACITY, groups=(CacheGroup(layers=(0, 2)), states))
    assert decode_capacity(encode_capacity(capacity)) == capacity
    capacity.check()


def test_blocks_of_states_count_as_no_tokens() -> None:
    groups = (CacheGroup(layers=(0, 2)), CacheGroup(kind="state", state_blocks=3, layers=(1, 3)))
    assert num_tokens_in(5, groups, block_size=16) == 5 * 16


def test_a_capacity_without_groups_has_a_full_one() -> None:
    message = encode_capacity(CAPACITY)
    message.ClearField("groups")
    assert decode_capacity(message).groups == (FULL_GROUP,)


def test_groups_that_are_alike_are_described_once() -> None:
    window = CacheGroup(kind="window", window=512, layers=(1, 3))
    assert describe_groups((CacheGroup(layers=(0, 2)), window, window)) == (
        "full (2 layers), 2 x window of 512 (2 layers)"
    )


def test_models_differ_in_the_first_field_that_does() -> None:
    assert MODEL.difference(MODEL) is None
    assert MODEL.difference(replace(MODEL, numerics=None)) is None
    other = replace(MODEL, vocab_size=9, dtype="float16")
    assert MODEL.difference(other) == "dtype is 'float16', but the scheduler serves 'float32'"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_gpu_blocks": 0}, "0 blocks of 16 tokens cannot hold a sequence"),
        ({"groups": (CacheGroup(kind="ring"),)}, "is full, window or state, not 'ring'"),
        ({"groups": (FULL_GROUP, CacheGroup(kind="state"))}, "a state group of layers has states"),
        ({"groups": (CacheGroup(state_blocks=1),)}, "a full group of layers has states of 1"),
        ({"groups": (STATES, FULL_GROUP)}, "behind all other groups"),
        ({"groups": (FULL_GROUP, STATES, STATES)}, "behind all other groups"),
        ({"groups": (STATES,)}, "beside a group of layers with attention"),
        ({"groups": (CacheGroup(kind="window"),)}, "a window group of layers has a window of 0"),
        ({"groups": (CacheGroup(window=9),)}, "a full group of layers has a window of 9"),
        ({"groups": (CacheGroup(),) * 65}, "at most 64 groups"),
        ({"block_size": 0}, "8 blocks of 0 tokens cannot hold a sequence"),
        ({"num_gpu_blocks": MAX_BLOCKS + 1}, "has more than 4194304"),
        ({"num_cpu_blocks": MAX_BLOCKS + 1}, "has more than 4194304"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"grammar_bytes": 0}, "grammar_bytes is 0"),
        ({"num_cpu_blocks": 0}, "no CPU blocks"),
        ({"arithmetic": "Z" * 64}, "it is no SHA-256 in hex"),
        ({"store": StoreCapacity(kind="x" * 1000)}, "one of disk, shared, memory"),
    ],
)
def test_a_capacity_that_holds_nothing_or_too_much_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    CAPACITY.check()
    with pytest.raises(ValueError, match=message):
        replace(CAPACITY, **changes).check()


@pytest.mark.parametrize("kind", ["disk", "shared", "memory"])
def test_a_worker_with_a_store_of_each_kind_is_accepted(kind: str) -> None:
    replace(CAPACITY, store=StoreCapacity(kind=kind)).check()
