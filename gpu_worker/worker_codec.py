"""Encodes results, memory reports and profiles as messages of worker.v1.

Steps are decoded by `contract.step`.
"""

from collections.abc import Iterator

from google.rpc import code_pb2

from contract import logprobs
from contract.columns import pack_int32, pack_int64
from contract.model import WorkerCapacity
from contract.tokenizer_files import MAX_CHUNK_BYTES
from gpu_worker.batch.runner_protocol import MemoryReport, ProfileOptions
from gpu_worker.insight.profiler import Profile
from gpu_worker.step import SequenceFailure, StepResult
from protos.worker.v1 import worker_pb2 as pb


def encode_result(result: StepResult) -> pb.ExecuteModelResponse:
    return pb.ExecuteModelResponse(
        epoch=result.epoch,
        step_id=result.step_id,
        seq_ids=pack_int64(result.seq_ids),
        token_ids=pack_int32(result.token_ids),
        logprobs=[logprobs.encode(one, row=row) for row, one in result.logprobs.items()],
        prompt_logprobs=[
            pb.PromptLogprobs(
                seq_id=run.seq_id,
                first_position=run.first_position,
                logprobs=[logprobs.encode(one, row=row) for row, one in enumerate(run.logprobs)],
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


def encode_memory(report: MemoryReport | None, capacity: WorkerCapacity) -> pb.MemoryReport | None:
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
