"""Reads and writes the messages of worker.v1 for the worker's core.

Checks only what the wire can get wrong (columns that do not match, numbers that do not fit);
what a step means is checked in `sequences/staging.py`.
"""

from collections.abc import Iterator, Mapping

from google.rpc import code_pb2

from gpu_worker.profiling import Profile
from gpu_worker.runner_protocols import CacheCapacity, MemoryReport, ModelInfo, ProfileOptions
from gpu_worker.step import (
    NO_COPIES,
    BlockMapping,
    BlockTablePatch,
    Fork,
    Logprobs,
    NewSequence,
    SequenceFailure,
    Step,
    StepResult,
)
from protos.worker.v1 import worker_pb2 as pb
from rpc import sampling_codec
from rpc.columns import (
    pack_int32,
    pack_int64,
    unpack_int32,
    unpack_int64,
)
from rpc.errors import InvalidArgument

MAX_CHUNK_BYTES = 1 << 20
_MAX_SEQ_ID = (1 << 63) - 1


def decode_step(request: pb.ExecuteModelRequest) -> Step:
    """Raises InvalidArgument if columns that belong together differ in length."""
    running = request.running
    seq_ids, num_new_tokens = unpack_int64(running.seq_ids), unpack_int32(running.num_new_tokens)
    _check_equal("running", len(seq_ids), len(num_new_tokens))
    return Step(
        epoch=request.epoch,
        step_id=request.step_id,
        finished=unpack_int64(request.finished_seq_ids),
        forks=_forks(request.forks) if request.HasField("forks") else [],
        new=[new for group in request.new_groups for new in _group(group)],
        running_seq_ids=seq_ids,
        running_num_new_tokens=num_new_tokens,
        patches=_patches(request.block_table_patches),
        swap_out=_mapping("blocks_to_swap_out", request.blocks_to_swap_out),
        swap_in=_mapping("blocks_to_swap_in", request.blocks_to_swap_in),
        copy=_mapping("blocks_to_copy", request.blocks_to_copy),
        traceparent=request.trace_context.traceparent,
        tracestate=request.trace_context.tracestate,
    )


def _check_equal(field: str, expected: int, *lengths: int) -> None:
    for length in lengths:
        if length != expected:
            raise InvalidArgument(field, f"columns of {expected} and {length}", "equal lengths")


def _forks(forks: pb.Forks) -> list[Fork]:
    parents, children = unpack_int64(forks.parent_seq_ids), unpack_int64(forks.child_seq_ids)
    branches, token_ids = unpack_int32(forks.branches), unpack_int32(forks.token_ids)
    _check_equal("forks", len(parents), len(children), len(branches), len(token_ids))
    columns = (parents.tolist(), children.tolist(), branches.tolist(), token_ids.tolist())
    return list(map(Fork, *columns))


def _group(group: pb.SequenceGroupMetadata) -> Iterator[NewSequence]:
    params = sampling_codec.decode(group.sampling_params)
    for sequence in group.sequences:
        if sequence.seq_id > _MAX_SEQ_ID:
            raise InvalidArgument("seq_id", sequence.seq_id, f"at most {_MAX_SEQ_ID}")
        yield NewSequence(
            seq_id=sequence.seq_id,
            branch=sequence.branch,
            token_ids=list(sequence.token_ids),
            num_prompt_tokens=group.num_prompt_tokens,
            num_computed_tokens=sequence.num_computed_tokens,
            num_new_tokens=sequence.num_new_tokens,
            block_table=list(sequence.block_table),
            num_samples=sequence.num_samples,
            params=params,
        )


def _patches(patches: pb.BlockTablePatches) -> list[BlockTablePatch]:
    seq_ids, first_index = unpack_int64(patches.seq_ids), unpack_int32(patches.first_index)
    num_blocks, blocks = unpack_int32(patches.num_blocks), unpack_int32(patches.blocks).tolist()
    _check_equal("block_table_patches", len(seq_ids), len(first_index), len(num_blocks))
    if len(num_blocks) and num_blocks.min() < 1:
        raise InvalidArgument("block_table_patches.num_blocks", int(num_blocks.min()), "at least 1")
    ends = num_blocks.cumsum(dtype="int64").tolist()
    _check_equal("block_table_patches.blocks", ends[-1] if ends else 0, len(blocks))
    columns = zip(seq_ids.tolist(), first_index.tolist(), [0, *ends], ends, strict=False)
    return [BlockTablePatch(seq_id, first, blocks[i:j]) for seq_id, first, i, j in columns]


def _mapping(field: str, mapping: pb.BlockMapping) -> BlockMapping:
    if not mapping.src and not mapping.dst:
        return NO_COPIES
    src, dst = unpack_int32(mapping.src), unpack_int32(mapping.dst)
    _check_equal(field, len(src), len(dst))
    return BlockMapping(src, dst)


def encode_result(result: StepResult) -> pb.ExecuteModelResponse:
    return pb.ExecuteModelResponse(
        epoch=result.epoch,
        step_id=result.step_id,
        seq_ids=pack_int64(result.seq_ids),
        token_ids=pack_int32(result.token_ids),
        logprobs=[_logprobs(found) for found in result.logprobs],
        prompt_logprobs=[
            pb.PromptLogprobs(
                seq_id=run.seq_id,
                first_position=run.first_position,
                logprobs=[_logprobs(found) for found in run.logprobs],
            )
            for run in result.prompt_logprobs
        ],
        errors=[_sequence_error(failed) for failed in result.failures],
        timings=pb.StepTimings(
            wait_ns=result.wait_ns,
            swap_ns=result.swap_ns,
            forward_ns=result.forward_ns,
            sample_ns=result.sample_ns,
        ),
        max_num_batched_tokens=result.max_num_batched_tokens or 0,
    )


def _sequence_error(failed: SequenceFailure) -> pb.SequenceError:
    code = code_pb2.FAILED_PRECONDITION if failed.is_refusal else code_pb2.INTERNAL
    return pb.SequenceError(seq_id=failed.seq_id, code=code, message=failed.message)


def _logprobs(found: Logprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        row=found.row,
        logprob=found.logprob,
        rank=found.rank,
        top_token_ids=found.top_token_ids,
        top_logprobs=found.top_logprobs,
    )


def encode_model(model: ModelInfo, *, tokenizer_sha256: str) -> pb.ModelInfo:
    return pb.ModelInfo(
        name=model.name,
        architecture=model.architecture,
        dtype=model.dtype,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        tokenizer_sha256=tokenizer_sha256,
        sampling_defaults=sampling_codec.encode_defaults(model.sampling_defaults),
    )


def encode_capacity(capacity: CacheCapacity) -> pb.WorkerCapacity:
    return pb.WorkerCapacity(
        block_size=capacity.block_size,
        num_gpu_blocks=capacity.num_gpu_blocks,
        num_cpu_blocks=capacity.num_cpu_blocks,
        block_bytes=capacity.block_bytes,
        max_num_seqs=capacity.max_num_seqs,
        max_num_batched_tokens=capacity.max_num_batched_tokens,
        copy_bytes_per_second=int(capacity.copy_bytes_per_s),
        prefill_tokens_per_second=int(capacity.prefill_tokens_per_s),
        tensor_parallel_size=capacity.tensor_parallel_size,
    )


def decode_capacity(message: pb.WorkerCapacity) -> CacheCapacity:
    """What another rank measured."""
    return CacheCapacity(
        block_size=message.block_size,
        num_gpu_blocks=message.num_gpu_blocks,
        num_cpu_blocks=message.num_cpu_blocks,
        block_bytes=message.block_bytes,
        max_num_seqs=message.max_num_seqs,
        max_num_batched_tokens=message.max_num_batched_tokens,
        copy_bytes_per_s=message.copy_bytes_per_second,
        prefill_tokens_per_s=message.prefill_tokens_per_second,
        tensor_parallel_size=message.tensor_parallel_size or 1,
    )


def encode_files(files: Mapping[str, bytes]) -> Iterator[pb.GetTokenizerResponse]:
    """Yields each file in chunks; an empty file is one empty chunk."""
    for name, content in files.items():
        for start in range(0, max(1, len(content)), MAX_CHUNK_BYTES):
            chunk = content[start : start + MAX_CHUNK_BYTES]
            yield pb.GetTokenizerResponse(file_name=name, chunk=chunk)


def encode_memory(report: MemoryReport | None, capacity: CacheCapacity) -> pb.MemoryReport | None:
    if report is None:
        return None
    return pb.MemoryReport(
        weights_bytes=report.weights,
        kv_bytes=report.kv,
        swap_bytes=report.swap,
        activations_bytes=capacity.activations_bytes,
        used_bytes=report.used,
        unused_bytes=report.unused,
        total_bytes=report.total,
    )


def decode_profile_options(request: pb.ProfileRequest) -> ProfileOptions:
    return ProfileOptions(
        duration_s=request.duration_ns / 1e9,
        record_shapes=request.record_shapes,
        with_stack=request.with_stack,
    )


def encode_profile(profile: Profile) -> Iterator[pb.ProfileResponse]:
    yield pb.ProfileResponse(num_steps=profile.num_steps, kernel_ns=profile.kernel_ns)
    for start in range(0, len(profile.chrome_trace), MAX_CHUNK_BYTES):
        yield pb.ProfileResponse(chunk=profile.chrome_trace[start : start + MAX_CHUNK_BYTES])
