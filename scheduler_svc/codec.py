"""Between the scheduler's dataclasses and the messages of scheduler.v1 and worker.v1."""

from collections.abc import Iterable

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.worker.v1 import worker_pb2 as worker_pb
from rpc import structured_output
from rpc.columns import (
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_float32,
    unpack_int32,
    unpack_int64,
)
from rpc.errors import InvalidArgument
from scheduler_svc.beam import BeamSearchParams
from scheduler_svc.block_allocator import BlockCopy
from scheduler_svc.config import StepLimits
from scheduler_svc.errors import RequestFailure
from scheduler_svc.model import ModelInfo, WorkerCapacity
from scheduler_svc.plan import (
    PromptLogprobs,
    StepAnswer,
    StepPlan,
    StepTimings,
    TokenLogprobs,
)
from scheduler_svc.router_messages import EndedRequest, FinishedSequence, RouterMessage
from scheduler_svc.sequence import FinishReason, GroupTimes, SamplingParams, SequenceGroup

_FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}

MAX_HANDLE = (1 << 63) - 1
"""Handles go back in a column of int64."""


# From routers


def group(message: pb.AddRequest, *, now: float) -> SequenceGroup:
    """Decodes a request. Raises InvalidArgument for what no router of ours sends."""
    if message.handle > MAX_HANDLE:
        raise InvalidArgument("handle", message.handle, f"at most {MAX_HANDLE}")
    if not message.prompt_token_ids:
        raise InvalidArgument("prompt_token_ids", [], "at least one token")
    if not message.max_tokens:
        raise InvalidArgument("max_tokens", 0, "at least 1")
    if not message.num_sequences:
        raise InvalidArgument("num_sequences", 0, "at least 1")
    timeout_ns = message.timeout_ns if message.HasField("timeout_ns") else None
    return SequenceGroup(
        request_id=message.request_id,
        prompt_token_ids=list(message.prompt_token_ids),
        params=_sampling_params(message.sampling_params),
        max_tokens=message.max_tokens,
        num_sequences=message.num_sequences,
        beam_search=_beam_search(message.beam_search) if message.HasField("beam_search") else None,
        deadline=None if timeout_ns is None else now + timeout_ns / 1e9,
        tenant=message.tenant,
        priority=message.priority,
        cache_salt=message.cache_salt,
        times=GroupTimes(arrival=now),
        traceparent=message.trace_context.traceparent,
        tracestate=message.trace_context.tracestate,
    )


def _beam_search(message: pb.BeamSearch) -> BeamSearchParams:
    return BeamSearchParams(
        width=message.width,
        length_penalty=message.length_penalty,
        early_stopping=message.early_stopping,
    )


def _sampling_params(message: worker_pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=_one_if_unset(message, "repetition_penalty"),
        typical_p=_one_if_unset(message, "typical_p"),
        logit_bias=_logit_bias(message),
        allowed_token_ids=tuple(unpack_int32(message.allowed_token_ids).tolist()),
        bad_words=tuple(tuple(unpack_int32(run.token_ids).tolist()) for run in message.bad_words),
        num_prompt_logprobs=(
            message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None
        ),
        structured_output=structured_output.read(message),
    )


def _one_if_unset(message: worker_pb.SamplingParams, name: str) -> float:
    return float(getattr(message, name)) if message.HasField(name) else 1.0


def _logit_bias(message: worker_pb.SamplingParams) -> tuple[tuple[int, float], ...]:
    token_ids = unpack_int32(message.logit_bias_token_ids)
    biases = unpack_float32(message.logit_biases)
    if len(token_ids) != len(biases):
        lengths = f"{len(token_ids)} tokens and {len(biases)} biases"
        raise InvalidArgument("sampling_params.logit_biases", lengths, "as many as tokens")
    return tuple(zip(token_ids.tolist(), biases.tolist(), strict=True))


# To routers


def connect_response(message: RouterMessage) -> pb.ConnectResponse:
    outputs = pb.StepOutputs(
        handles=pack_int64(message.handles),
        indices=pack_int32(message.indices),
        num_tokens=pack_int32([1] * len(message.token_ids)),
        token_ids=pack_int32(message.token_ids),
        logprobs=[_logprobs(row, values) for row, values in message.logprobs],
        finished_sequences=[_sequence_finished(finished) for finished in message.finished],
        finished_requests=[_request_finished(ended) for ended in message.ended],
        prompt_logprobs=[
            pb.PromptLogprobs(
                handle=handle,
                first_position=first_position,
                logprobs=[_logprobs(row, values) for row, values in enumerate(logprobs)],
            )
            for handle, first_position, logprobs in message.prompt_logprobs
        ],
    )
    return pb.ConnectResponse(step_outputs=outputs)


def _logprobs(row: int, values: TokenLogprobs) -> worker_pb.TokenLogprobs:
    return worker_pb.TokenLogprobs(
        row=row,
        logprob=values.logprob,
        rank=values.rank,
        top_token_ids=values.top_token_ids,
        top_logprobs=values.top_logprobs,
    )


def _sequence_finished(finished: FinishedSequence) -> pb.SequenceFinished:
    return pb.SequenceFinished(
        handle=finished.handle,
        index=finished.index,
        reason=_FINISH_REASONS[finished.reason],
        stop_token_id=finished.stop_token_id,
        error_message=finished.error_message,
        score=finished.score,
    )


def _request_finished(ended: EndedRequest) -> pb.RequestFinished:
    message = pb.RequestFinished(
        handle=ended.handle,
        usage=pb.Usage(
            prompt_tokens=ended.num_prompt_tokens,
            completion_tokens=ended.num_completion_tokens,
            cached_tokens=ended.num_cached_tokens,
        ),
        timings=_timings(ended.times, ended.now),
    )
    if ended.failure is not None:
        _fill_failure(message, ended.failure)
    return message


def _fill_failure(message: pb.RequestFinished, failure: RequestFailure) -> None:
    message.code = failure.code.value
    message.message = failure.message
    if failure.retry_after_s is not None:
        message.retry_after_ns = int(failure.retry_after_s * 1e9)


def _timings(times: GroupTimes, now: float) -> pb.Timings:
    scheduled = now if times.first_scheduled is None else times.first_scheduled
    first_token = now if times.first_token is None else times.first_token
    last_token = first_token if times.last_token is None else times.last_token
    return pb.Timings(
        queued_ns=_nanoseconds(scheduled - times.arrival),
        prefill_ns=_nanoseconds(first_token - scheduled),
        decode_ns=_nanoseconds(last_token - first_token),
        preempted_ns=_nanoseconds(times.preempted_s),
    )


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))


# To workers


def execute_model_request(plan: StepPlan, *, epoch: int) -> worker_pb.ExecuteModelRequest:
    """Encodes a plan; to be called before anything else happens to its sequences."""
    message = worker_pb.ExecuteModelRequest(
        epoch=epoch,
        step_id=plan.step_id,
        finished_seq_ids=pack_int64(plan.forget),
        running=worker_pb.RunningSequences(
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


def _new_groups(plan: StepPlan) -> Iterable[worker_pb.SequenceGroupMetadata]:
    groups: dict[SequenceGroup, list[worker_pb.SequenceMetadata]] = {}
    for i in plan.new:
        groups.setdefault(plan.seqs[i].group, []).append(_sequence_metadata(plan, i))
    for seq_group, sequences in groups.items():
        yield worker_pb.SequenceGroupMetadata(
            request_id=seq_group.request_id,
            sampling_params=_group_params(seq_group),
            num_prompt_tokens=seq_group.num_prompt_tokens,
            sequences=sequences,
        )


def _group_params(seq_group: SequenceGroup) -> worker_pb.SamplingParams:
    """What the router has been told of the prompt is not asked for again."""
    params = worker_params(seq_group.params)
    if not seq_group.wants_prompt_logprobs:
        params.ClearField("num_prompt_logprobs")
    return params


def _sequence_metadata(plan: StepPlan, index: int) -> worker_pb.SequenceMetadata:
    seq = plan.seqs[index]
    return worker_pb.SequenceMetadata(
        seq_id=seq.seq_id,
        branch=seq.branch,
        token_ids=seq.token_ids,
        num_computed_tokens=seq.num_computed_tokens,
        num_new_tokens=plan.num_new_tokens[index],
        block_table=seq.block_table,
        num_samples=seq.group.num_draws,
    )


def worker_params(params: SamplingParams) -> worker_pb.SamplingParams:
    message = worker_pb.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        num_logprobs=params.num_logprobs,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        typical_p=params.typical_p,
        logit_bias_token_ids=pack_int32([token_id for token_id, _ in params.logit_bias]),
        logit_biases=pack_float32([bias for _, bias in params.logit_bias]),
        allowed_token_ids=pack_int32(params.allowed_token_ids),
        bad_words=[worker_pb.TokenRun(token_ids=pack_int32(run)) for run in params.bad_words],
        num_prompt_logprobs=params.num_prompt_logprobs,
    )
    structured_output.write(message, params.structured_output)
    return message


def _forks(plan: StepPlan) -> worker_pb.Forks:
    return worker_pb.Forks(
        parent_seq_ids=pack_int64([fork.parent_id for fork in plan.forks]),
        child_seq_ids=pack_int64([fork.child_id for fork in plan.forks]),
        branches=pack_int32([fork.branch for fork in plan.forks]),
        token_ids=pack_int32([fork.token_id for fork in plan.forks]),
    )


def _patches(plan: StepPlan) -> worker_pb.BlockTablePatches:
    return worker_pb.BlockTablePatches(
        seq_ids=pack_int64([patch.seq_id for patch in plan.patches]),
        first_index=pack_int32([patch.first_index for patch in plan.patches]),
        num_blocks=pack_int32([len(patch.blocks) for patch in plan.patches]),
        blocks=pack_int32([block for patch in plan.patches for block in patch.blocks]),
    )


def mapping(copies: list[BlockCopy]) -> worker_pb.BlockMapping:
    return worker_pb.BlockMapping(
        src=pack_int32([copy.src for copy in copies]), dst=pack_int32([copy.dst for copy in copies])
    )


# From workers


def step_answer(message: worker_pb.ExecuteModelResponse) -> StepAnswer:
    timings = message.timings
    return StepAnswer(
        step_id=message.step_id,
        seq_ids=unpack_int64(message.seq_ids).tolist(),
        token_ids=unpack_int32(message.token_ids).tolist(),
        logprobs={entry.row: _token_logprobs(entry) for entry in message.logprobs},
        prompt_logprobs=[
            PromptLogprobs(
                run.seq_id, run.first_position, [_token_logprobs(entry) for entry in run.logprobs]
            )
            for run in message.prompt_logprobs
        ],
        failures={error.seq_id: error.message for error in message.errors},
        timings=StepTimings(
            timings.wait_ns, timings.swap_ns, timings.forward_ns, timings.sample_ns
        ),
    )


def _token_logprobs(entry: worker_pb.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(
        entry.logprob, entry.rank, list(entry.top_token_ids), list(entry.top_logprobs)
    )


def model_info(message: worker_pb.ModelInfo) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        architecture=message.architecture,
        dtype=message.dtype,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        eos_token_ids=tuple(message.eos_token_ids),
        tokenizer_sha256=message.tokenizer_sha256,
    )


def model_message(model: ModelInfo) -> worker_pb.ModelInfo:
    return worker_pb.ModelInfo(
        name=model.name,
        architecture=model.architecture,
        dtype=model.dtype,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        tokenizer_sha256=model.tokenizer_sha256,
    )


def capacity_message(capacity: WorkerCapacity) -> worker_pb.WorkerCapacity:
    return worker_pb.WorkerCapacity(
        block_size=capacity.block_size,
        num_gpu_blocks=capacity.num_gpu_blocks,
        num_cpu_blocks=capacity.num_cpu_blocks,
        block_bytes=capacity.block_bytes,
        max_num_seqs=capacity.limits.max_num_seqs,
        max_num_batched_tokens=capacity.limits.max_num_batched_tokens,
        copy_bytes_per_second=int(capacity.copy_bytes_per_s),
        prefill_tokens_per_second=int(capacity.prefill_tokens_per_s),
    )


def capacity(message: worker_pb.WorkerCapacity) -> WorkerCapacity:
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
