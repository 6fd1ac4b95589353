"""The wire of worker.v1, read and written."""

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from signalbox_contract.columns import pack_int32, pack_int64
from signalbox_contract.errors import InvalidArgument, RpcError
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import TablePatch, decode_step
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.common.v1.common_pb2 import BlockMapping, BlockMoves, TraceContext
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.gpu_worker.builders import make_lease, make_new, make_runner, make_step, make_table


def test_a_whole_request_is_decoded() -> None:
    step = decode_step(
        pb.ExecuteModelRequest(
            epoch=(1 << 64) - 1,
            step_id=4,
            finished_seq_ids=pack_int64([9]),
            forks=pb.Forks(
                parent_seq_ids=pack_int64([1]),
                child_seq_ids=pack_int64([2]),
                branches=pack_int32([1]),
                token_ids=pack_int32([77]),
            ),
            new_groups=[
                pb.SequenceGroupMetadata(
                    request_id="r",
                    sampling_params=common_pb2.SamplingParams(
                        top_p=1, seed=(1 << 64) - 1, stop_token_ids=[3, 2], num_logprobs=0
                    ),
                    num_prompt_tokens=2,
                    sequences=[
                        pb.SequenceMetadata(
                            seq_id=5,
                            branch=1,
                            token_ids=[1, 2, 3],
                            num_computed_tokens=1,
                            num_new_tokens=2,
                            block_table=[4],
                            num_samples=1,
                        )
                    ],
                )
            ],
            running=pb.RunningSequences(
                seq_ids=pack_int64([1, 2]), num_new_tokens=pack_int32([1, 8])
            ),
            block_table_patches=pb.BlockTablePatches(
                seq_ids=pack_int64([1, 2]),
                first_index=pack_int32([0, 3]),
                num_blocks=pack_int32([2, 1]),
                blocks=pack_int32([7, 8, 9]),
            ),
            block_moves=BlockMoves(swap_out=BlockMapping(src=pack_int32([1]), dst=pack_int32([2]))),
            trace_context=TraceContext(traceparent="t", tracestate="s"),
        )
    )
    assert (step.epoch, step.step_id, step.finished.tolist()) == ((1 << 64) - 1, 4, [9])
    assert step.forks == (Fork(parent=1, child=2, branch=1, token_id=77),)
    assert (step.running_seq_ids.tolist(), step.running_num_new_tokens.tolist()) == ([1, 2], [1, 8])
    assert step.patches == (TablePatch(1, 0, (7, 8)), TablePatch(2, 3, (9,)))
    src, dst = step.block_moves.swap_out
    assert (src.tolist(), dst.tolist()) == ([1], [2])
    assert (step.traceparent, step.tracestate) == ("t", "s")
    (new,) = step.new
    assert (new.seq_id, new.branch, new.token_ids, new.block_table) == (5, 1, [1, 2, 3], [4])
    assert new.params == SamplingParams(
        top_p=1.0, seed=(1 << 64) - 1, stop_token_ids=(3, 2), num_logprobs=0
    )


def test_an_empty_request_is_an_empty_step() -> None:
    step = decode_step(pb.ExecuteModelRequest(epoch=1, step_id=1))
    assert (step.new, step.forks, step.patches) == ((), (), ())
    assert len(step.running_seq_ids) == len(step.block_moves.copy.src) == 0


COLUMNS = {
    "finished_seq_ids": pack_int64([3]),
    "running.seq_ids": pack_int64([1]),
    "running.num_new_tokens": pack_int32([1]),
    "block_table_patches.seq_ids": pack_int64([1]),
    "block_table_patches.first_index": pack_int32([1]),
    "block_table_patches.num_blocks": pack_int32([1]),
    "block_table_patches.blocks": pack_int32([5]),
    "forks.parent_seq_ids": pack_int64([1]),
    "forks.child_seq_ids": pack_int64([2]),
    "forks.branches": pack_int32([1]),
    "forks.token_ids": pack_int32([7]),
    "block_moves.swap_out.src": pack_int32([0]),
    "block_moves.swap_out.dst": pack_int32([0]),
    "block_moves.swap_in.src": pack_int32([1]),
    "block_moves.swap_in.dst": pack_int32([8]),
    "block_moves.copy.src": pack_int32([0]),
    "block_moves.copy.dst": pack_int32([9]),
}
"""A step that is allowed after another has started the sequences 1 and 3."""
COUNTED_BY = {
    "running.seq_ids": "running.num_new_tokens",
    "block_table_patches.seq_ids": "block_table_patches.first_index",
    "forks.parent_seq_ids": "forks.child_seq_ids",
    "block_moves.swap_out.src": "block_moves.swap_out.dst",
    "block_moves.swap_in.src": "block_moves.swap_in.dst",
    "block_moves.copy.src": "block_moves.copy.dst",
}
"""The field that an error names if the column before it has another length."""


def execute_columns(**changed: bytes) -> None:
    """Decodes and executes a step of COLUMNS."""
    lease = make_lease()
    started = make_step(new=[make_new(seq_id, [5], [seq_id]) for seq_id in (1, 3)])
    lease.execute(started, arrived_ns=0)
    request = pb.ExecuteModelRequest(epoch=7, step_id=2)
    for path, column in (COLUMNS | changed).items():
        *sections, name = path.split(".")
        message: Message = request
        for section in sections:
            message = getattr(message, section)
        setattr(message, name, column)
    lease.execute(decode_step(request), arrived_ns=0)
    lease.table.check()


def test_a_step_of_all_columns_is_executed() -> None:
    execute_columns()


@pytest.mark.parametrize("path", COLUMNS)
def test_a_cut_column_is_refused_by_name(path: str) -> None:
    with pytest.raises(InvalidArgument, match="a multiple of") as refused:
        execute_columns(**{path: COLUMNS[path] + b"x"})
    assert refused.value.field == path


@pytest.mark.parametrize("path", COLUMNS)
def test_a_negative_number_is_refused_by_the_name_of_its_column(path: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        execute_columns(**{path: b"\xff" * len(COLUMNS[path])})
    assert refused.value.field == path


@pytest.mark.parametrize("path", list(COLUMNS)[1:])
def test_a_column_of_another_length_is_refused_by_name(path: str) -> None:
    with pytest.raises(InvalidArgument, match="a column of") as refused:
        execute_columns(**{path: COLUMNS[path] * 2})
    assert refused.value.field == COUNTED_BY.get(path, path)


def test_a_sequence_id_past_int64_is_refused() -> None:
    group = pb.SequenceGroupMetadata(sequences=[pb.SequenceMetadata(seq_id=1 << 63)])
    with pytest.raises(InvalidArgument, match=r"new_groups\.sequences\.seq_id"):
        decode_step(pb.ExecuteModelRequest(new_groups=[group]))


numbers = st.integers(min_value=-3, max_value=20)
int32_columns = st.lists(numbers, max_size=3).map(pack_int32)
int64_columns = st.lists(numbers, max_size=3).map(pack_int64)
small = st.integers(min_value=0, max_value=20)
mappings = st.builds(BlockMapping, src=int32_columns, dst=int32_columns)
sequences = st.builds(
    pb.SequenceMetadata,
    seq_id=small,
    token_ids=st.lists(st.integers(0, (1 << 32) - 1) | small, max_size=8),
    num_computed_tokens=small,
    num_new_tokens=small,
    block_table=st.lists(st.integers(-1, (1 << 31) - 1) | small, max_size=4),
    num_samples=small,
    branch=st.integers(0, (1 << 32) - 1),
)
groups = st.builds(
    pb.SequenceGroupMetadata,
    num_prompt_tokens=small,
    sequences=st.lists(sequences, max_size=2),
    sampling_params=st.builds(
        common_pb2.SamplingParams, top_p=st.floats(width=32), top_k=st.integers(0, (1 << 32) - 1)
    ),
)
requests = st.builds(
    pb.ExecuteModelRequest,
    finished_seq_ids=int64_columns | st.binary(max_size=9),
    new_groups=st.lists(groups, max_size=2),
    running=st.builds(pb.RunningSequences, seq_ids=int64_columns, num_new_tokens=int32_columns),
    block_table_patches=st.builds(
        pb.BlockTablePatches,
        seq_ids=int64_columns,
        first_index=int32_columns,
        num_blocks=int32_columns,
        blocks=int32_columns,
    ),
    forks=st.builds(
        pb.Forks,
        parent_seq_ids=int64_columns,
        child_seq_ids=int64_columns,
        branches=int32_columns,
        token_ids=int32_columns,
    ),
    block_moves=st.builds(BlockMoves, swap_out=mappings, swap_in=mappings, copy=mappings),
)


@settings(max_examples=300)
@given(request_=requests)
def test_any_request_is_executed_or_refused_with_a_status(request_: pb.ExecuteModelRequest) -> None:
    runner: SimulatedRunner = make_runner()
    table = make_table(runner)
    try:
        batch = table.apply(decode_step(request_))
    except RpcError:
        assert len(table) == 0
    else:
        if len(batch.token_ids):
            table.append_tokens(runner.execute(batch))
    table.check()
