"""Between the scheduler's dataclasses and the messages of worker.v1."""

from collections.abc import Iterable

from protos.worker.v1 import worker_pb2 as pb
from rpc import sampling_codec
from rpc.columns import int32_list, int64_list, pack_int32, pack_int64
from scheduler_svc.block_allocator import BlockCopy
from scheduler_svc.config import StepLimits
from scheduler_svc.errors import FailureCode, RequestFailure, worker_failure
from scheduler_svc.model import ModelInfo, WorkerCapacity
from scheduler_svc.plan import PromptLogprobs, StepAnswer, StepPlan, StepTimings, TokenLogprobs
from scheduler_svc.sequence import SequenceGroup

# To workers


def execute_model_request(plan: StepPlan, *, epoch: int) -> pb.ExecuteModelRequest:
    """Encodes a plan; to be called before anything else happens to its sequences."""
    message = pb.ExecuteModelRequest(
        epoch=epoch,
        step_id=plan.step_id,
        finished_seq_ids=pack_int64(plan.forget),
        running=pb.RunningSequences(
            seq_ids=pack_int64([plan.seqs[i].seq_id for i in plan.running]),
            num_new_tokens=pack_int32([plan.num_new_tokens[i] for i in plan.running]),
        ),
    )
    if plan.new:
        message.new_groups.extend(_new_groups(plan))
    if plan.forks:
        message.forks.CopyFrom(_forks(plan))
    if plan.patches:
        message.block_table_patches.CopyFrom(_patches(plan))
    for field, copies in (
        (message.blocks_to_swap_out, plan.swap_out),
        (message.blocks_to_swap_in, plan.swap_in),
        (message.blocks_to_copy, plan.copy),
    ):
        if copies:
            field.CopyFrom(mapping(copies))
    return message


def set_trace_context(message: pb.ExecuteModelRequest, plan: StepPlan) -> None:
    """Lets the worker's spans begin below the step's, if that has one."""
    if plan.trace is not None:
        traceparent, tracestate = plan.trace.trace_context
        message.trace_context.traceparent = traceparent
        message.trace_context.tracestate = tracestate


def _new_groups(plan: StepPlan) -> Iterable[pb.SequenceGroupMetadata]:
    groups: dict[SequenceGroup, list[pb.SequenceMetadata]] = {}
    for i in plan.new:
        groups.setdefault(plan.seqs[i].group, []).append(_sequence_metadata(plan, i))
    for seq_group, sequences in groups.items():
        yield pb.SequenceGroupMetadata(
            request_id=seq_group.request_id,
            sampling_params=_group_params(seq_group),
            num_prompt_tokens=seq_group.num_prompt_tokens,
            sequences=sequences,
        )


def _group_params(seq_group: SequenceGroup) -> pb.SamplingParams:
    """What the router has been told of the prompt is not asked for again."""
    params = sampling_codec.encode(seq_group.params)
    if not seq_group.wants_prompt_logprobs:
        params.ClearField("num_prompt_logprobs")
    return params


def _sequence_metadata(plan: StepPlan, index: int) -> pb.SequenceMetadata:
    seq = plan.seqs[index]
    return pb.SequenceMetadata(
        seq_id=seq.seq_id,
        branch=seq.branch,
        token_ids=seq.token_ids,
        num_computed_tokens=seq.num_computed_tokens,
        num_new_tokens=plan.num_new_tokens[index],
        block_table=seq.block_table,
        num_samples=seq.group.num_draws,
    )


def _forks(plan: StepPlan) -> pb.Forks:
    return pb.Forks(
        parent_seq_ids=pack_int64([fork.parent_id for fork in plan.forks]),
        child_seq_ids=pack_int64([fork.child_id for fork in plan.forks]),
        branches=pack_int32([fork.branch for fork in plan.forks]),
        token_ids=pack_int32([fork.token_id for fork in plan.forks]),
    )


def _patches(plan: StepPlan) -> pb.BlockTablePatches:
    return pb.BlockTablePatches(
        seq_ids=pack_int64([patch.seq_id for patch in plan.patches]),
        first_index=pack_int32([patch.first_index for patch in plan.patches]),
        num_blocks=pack_int32([len(patch.blocks) for patch in plan.patches]),
        blocks=pack_int32([block for patch in plan.patches for block in patch.blocks]),
    )


def mapping(copies: list[BlockCopy]) -> pb.BlockMapping:
    return pb.BlockMapping(
        src=pack_int32([copy.src for copy in copies]), dst=pack_int32([copy.dst for copy in copies])
    )


# From workers


def step_answer(message: pb.ExecuteModelResponse) -> StepAnswer:
    timings = message.timings
    answer = StepAnswer(
        step_id=message.step_id,
        seq_ids=int64_list(message.seq_ids),
        token_ids=int32_list(message.token_ids),
        timings=StepTimings(
            timings.wait_ns, timings.swap_ns, timings.forward_ns, timings.sample_ns
        ),
        max_num_batched_tokens=message.max_num_batched_tokens or None,
    )
    if logprobs := message.logprobs:
        answer.logprobs = {entry.row: _token_logprobs(entry) for entry in logprobs}
    if runs := message.prompt_logprobs:
        answer.prompt_logprobs = [_prompt_logprobs(run) for run in runs]
    if errors := message.errors:
        answer.failures = {error.seq_id: _failure(error) for error in errors}
    return answer


def _prompt_logprobs(run: pb.PromptLogprobs) -> PromptLogprobs:
    entries = [_token_logprobs(entry) for entry in run.logprobs]
    return PromptLogprobs(run.seq_id, run.first_position, entries)


def _failure(error: pb.SequenceError) -> RequestFailure:
    is_refusal = error.code == FailureCode.FAILED_PRECONDITION.value
    return worker_failure(error.message, is_refusal=is_refusal)


def _token_logprobs(entry: pb.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(
        entry.logprob, entry.rank, list(entry.top_token_ids), list(entry.top_logprobs)
    )


def model_info(message: pb.ModelInfo) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        architecture=message.architecture,
        dtype=message.dtype,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        eos_token_ids=tuple(message.eos_token_ids),
        tokenizer_sha256=message.tokenizer_sha256,
        sampling_defaults=sampling_codec.decode_defaults(message.sampling_defaults),
    )


def model_message(model: ModelInfo) -> pb.ModelInfo:
    return pb.ModelInfo(
        name=model.name,
        architecture=model.architecture,
        dtype=model.dtype,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        tokenizer_sha256=model.tokenizer_sha256,
        sampling_defaults=sampling_codec.encode_defaults(model.sampling_defaults),
    )


def capacity_message(capacity: WorkerCapacity) -> pb.WorkerCapacity:
    return pb.WorkerCapacity(
        block_size=capacity.block_size,
        num_gpu_blocks=capacity.num_gpu_blocks,
        num_cpu_blocks=capacity.num_cpu_blocks,
        block_bytes=capacity.block_bytes,
        max_num_seqs=capacity.limits.max_num_seqs,
        max_num_batched_tokens=capacity.limits.max_num_batched_tokens,
        copy_bytes_per_second=int(capacity.copy_bytes_per_s),
        prefill_tokens_per_second=int(capacity.prefill_tokens_per_s),
    )


def capacity(message: pb.WorkerCapacity) -> WorkerCapacity:
    """Decodes a capacity. Raises ValueError for one that holds nothing."""
    return WorkerCapacity(
        block_size=message.block_size,
        num_gpu_blocks=message.num_gpu_blocks,
        num_cpu_blocks=message.num_cpu_blocks,
        block_bytes=message.block_bytes,
        copy_bytes_per_s=message.copy_bytes_per_second,
        prefill_tokens_per_s=message.prefill_tokens_per_second,
        limits=StepLimits(
            max_num_seqs=message.max_num_seqs,
            max_num_batched_tokens=message.max_num_batched_tokens,
        ),
    )
